//! Which verbs does the operator hold, and what for?

