"""The package by whose name Spark finds the data source `holdfast`, without any call of the user's."""

from holdfast.spark.datasource import HoldfastSource as DefaultSource

__all__ = ["DefaultSource"]
