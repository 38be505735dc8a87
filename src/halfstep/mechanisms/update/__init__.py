"""Weight updates with stochastic or Kahan rounding: the field `update`."""
