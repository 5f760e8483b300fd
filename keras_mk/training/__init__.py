"""Training steps other than Keras's own."""
