# SPDX-License-Identifier: MIT
"""Capillary inside other projects. Each module imports the project it is for; this package imports none."""
