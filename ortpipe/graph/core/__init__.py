"""The tools of every change of a graph: builder, query, types, edit, rewrite, the table of operators and the check."""
