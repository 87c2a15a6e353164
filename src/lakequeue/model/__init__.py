"""The vocabulary of the package: values and rules without I/O."""
