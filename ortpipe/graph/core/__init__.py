"""What every change of a graph uses: builder, query, types, edit, rewrite, the table of operators, and the check."""
