//! What must hold though no replica of Sluice answers.
