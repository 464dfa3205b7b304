"""The functions of the Arrow expression engine, a module for each kind of value."""
