"""How containers and job steps are started, whatever starts them."""
