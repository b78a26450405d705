"""Which endpoints to leave alone for a while, and how what was on its way to one gets elsewhere.

`core` decides, out of what is told to it and of pings that somebody sends for it; `prober` sends
them. `dispatch` brings messages to the endpoint that a `Router` names, and `receive` is the other
end of that. `bookies` keeps the bookies of a cluster apart from those in trouble.
"""
