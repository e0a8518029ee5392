"""The only package that touches private names of JAX, pytest or hypothesis.

Private is what a library neither exports nor documents: its ``_src`` modules, names that begin
with ``_``, names of its classes. (What the parameters of a primitive mean, its rule says.) Here
stand facts, read into plain values and dataclasses, and contexts. Each module says in which
versions they were seen, when it can go, and which test fails when they change.
"""
