""""""

from ...installation import require

require("worker", "this operation")
