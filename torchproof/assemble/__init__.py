"""Images straight from wheels, without a daemon; `cell.build_cell` is the way in."""
