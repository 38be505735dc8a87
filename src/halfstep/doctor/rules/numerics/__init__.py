"""An operator gives inf or NaN: in every format, or only where half precision rounds its inputs."""
