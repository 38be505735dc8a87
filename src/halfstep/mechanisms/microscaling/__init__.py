"""MXFP8 and MXFP4, the microscaling formats of the Open Compute Project: the field `mx`."""
