"""Backend dali: threads read and plan, DALI decodes, resizes and mirrors."""
