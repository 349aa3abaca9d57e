//! What a step's pod, its parameters and its calls must not reach.
