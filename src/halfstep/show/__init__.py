"""What figures are shown with, wherever they come from: units, and self-contained pages."""
