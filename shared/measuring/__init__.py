"""What a measurement is made of and reported as: sizes of models, the machine's limits, the report's one
form, the verdict."""
