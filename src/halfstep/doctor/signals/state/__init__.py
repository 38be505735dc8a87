"""The state of a loop that all signals share: its objects, its actions and its gradients."""
