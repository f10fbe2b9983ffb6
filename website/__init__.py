"""The documentation as a site: `make docs` gathers the pages and has Sphinx build them, with warnings as errors.

The pages are written for the repository, where they read well as they are. `pages.py` says which files become pages
and changes what a site needs otherwise; `conf.py` is Sphinx's.
"""
