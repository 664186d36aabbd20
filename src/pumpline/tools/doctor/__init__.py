"""`pumpline doctor`: what is wrong with a cluster, as far as one can see it from here."""
