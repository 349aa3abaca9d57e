//! The token in the webhooks' path: replaced when it may have been seen.
