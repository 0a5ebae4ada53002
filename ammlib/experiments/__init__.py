"""What single notebooks and the measurements of cost need."""
