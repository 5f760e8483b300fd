"""The methods of the CIFAR-10 table: what each trains, and what it ships.

Each is a function that trains on a `Cell` and returns the model that is
evaluated.
"""

import time

import keras

import keras_mk
from keras_mk import baselines

ARCHITECTURES = {"a1": (100,), "a2": (200, 100), "a3": (400, 200, 100)}
EXPANSION = 3


class Cell:
    """One run of one method: how to make a network and train it."""

    def __init__(self, args, data):
        self.args = args
        self.train, self.validation, self.test = data
        self.curves = []
        self.seconds = 0.0
        # Plain networks that other runs of the same setting need again.
        self.trained = getattr(args, "trained", {})

    def network(self, seed):
        keras.utils.set_random_seed(seed)
        return keras.Sequential(
            [
                keras.Input(self.train[0].shape[1:]),
                *(
                    keras.layers.Dense(units, activation="relu")
                    for units in ARCHITECTURES[self.args.architecture]
                ),
                keras.layers.Dense(10),
            ]
        )

    def compile(self, model):
        optimizers = {
            "adam": keras.optimizers.Adam,
            "sgd": keras.optimizers.SGD,
        }
        model.compile(
            optimizers[self.args.optimizer](self.args.rate),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
        return model

    def fit(self, model, seed, epochs=None, callbacks=()):
        """Trains a model; the time it takes is the run's."""
        keras.utils.set_random_seed(seed)
        epochs = epochs or self.args.epochs
        best = keras.callbacks.EarlyStopping(
            "val_accuracy",
            mode="max",
            patience=epochs,
            restore_best_weights=True,
        )
        start = time.perf_counter()
        history = self.compile(model).fit(
            *self.train,
            batch_size=self.args.batch,
            epochs=epochs,
            validation_data=self.validation,
            callbacks=[*callbacks, best, Tick(self.args.tick)],
            verbose=0,
        )
        self.seconds += time.perf_counter() - start
        self.curves.append(history.history)
        return model

    def plain(self, seed, start=None, epochs=None):
        """A plain network, trained from its own beginning or from `start`."""
        model = self.network(self.args.seed if start else seed)
        if start:
            model.set_weights(start)
        args = self.args
        key = (args.architecture, args.optimizer, args.rate, args.seed)
        key += (seed, start is None, epochs or args.epochs)
        if key not in self.trained:
            seconds = self.seconds
            self.fit(model, seed, epochs)
            took = self.seconds - seconds
            self.trained[key] = (model.get_weights(), self.curves[-1], took)
        else:
            weights, curve, took = self.trained[key]
            model.set_weights(weights)
            self.curves.append(curve)
            self.seconds += took
            for _ in range(epochs or args.epochs):
                args.tick()
        return model

    def members(self):
        """Independently trained plain networks."""
        seeds = [self.args.seed + 1000 * k for k in range(EXPANSION)]
        return [self.plain(seed) for seed in seeds]

    def accuracy(self, model, data):
        logits = model.predict(data[0], batch_size=1000, verbose=0)
        return float((logits.argmax(-1) == data[1]).mean())


class Tick(keras.callbacks.Callback):
    def __init__(self, tick):
        super().__init__()
        self.tick = tick

    def on_epoch_end(self, epoch, logs=None):
        self.tick()


def baseline(cell):
    return cell.plain(cell.args.seed)


def baseline_long(cell):
    return cell.plain(cell.args.seed, epochs=EXPANSION * cell.args.epochs)


def expanded(cell):
    return keras_mk.expand(
        cell.network(cell.args.seed),
        EXPANSION,
        copies="independent",
        seed=cell.args.seed,
    )


def majority(cell):
    return keras_mk.collapse(cell.fit(expanded(cell), cell.args.seed))


def adv_majority(cell):
    model = keras_mk.training.AdversarialMK(expanded(cell), cell.args.epsilon)
    return keras_mk.collapse(cell.fit(model, cell.args.seed).model)


def ensemble(cell):
    return baselines.Ensemble(cell.members(), from_logits=True)


def distilled(cell):
    student = cell.network(cell.args.seed + 5000)
    cell.fit(baselines.distiller(ensemble(cell), student), cell.args.seed)
    return student


def subset(cell):
    wide = baselines.subset_network(cell.network(cell.args.seed), EXPANSION)
    selection = baselines.SubsetSelection(
        every=cell.args.subset_every, beta=cell.args.beta
    )
    return baselines.selected_network(
        cell.fit(wide, cell.args.seed, callbacks=[selection])
    )


def uniform_soup(cell):
    return baselines.uniform_soup(fine_tuned(cell))


def greedy_soup(cell):
    return baselines.greedy_soup(
        fine_tuned(cell), lambda m: cell.accuracy(m, cell.validation)
    )


def fine_tuned(cell):
    """Soups are of models that share a beginning: the first half."""
    seed, half = cell.args.seed, max(1, cell.args.epochs // 2)
    start = cell.plain(seed, epochs=half).get_weights()
    seeds = [seed + 1000 * (k + 1) for k in range(EXPANSION)]
    return [cell.plain(other, start, half) for other in seeds]


METHODS = {
    "baseline": baseline,
    "majority": majority,
    "ensemble": ensemble,
    "distilled": distilled,
    "subset": subset,
    "adv-majority": adv_majority,
    "soup-uniform": uniform_soup,
    "soup-greedy": greedy_soup,
    "baseline-long": baseline_long,
}
# How many epochs each trains, as multiples of the baseline's.
EPOCHS = {
    "ensemble": EXPANSION,
    "distilled": EXPANSION + 1,
    "soup-uniform": (1 + EXPANSION) / 2,
    "soup-greedy": (1 + EXPANSION) / 2,
    "baseline-long": EXPANSION,
}
# Whose rate a method takes when its own is not searched for.
RATE_OF = {"majority": "majority", "adv-majority": "majority"}
