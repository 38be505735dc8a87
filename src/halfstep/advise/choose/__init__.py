"""Which recipe a model survives, and which of its sites have to stay in fp32."""
