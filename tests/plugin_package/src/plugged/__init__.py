"""What a package of somebody else adds to patchbench: a mixer, a task, and the map of a model."""
