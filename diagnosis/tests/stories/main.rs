//! What users get from the catalogue: messages recognised, pages that are current.

mod corpus;
mod generated;
mod noise;
