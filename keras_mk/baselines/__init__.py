"""What majority kernels are compared with.

Example:

>>> from keras_mk import baselines
>>> baselines.SAM.__name__
'SAM'
"""

from keras_mk.baselines.sam import SAM as SAM
