"""How processes train together: started, joined, named, and what they tell each other."""
