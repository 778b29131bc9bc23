package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/explain"
	"github.com/seed-81f232ab/rls/limitstest"
)

// schemas has the JSON Schema of each kind of file.
var schemas = map[string]func() map[string]any{
	"limits": limitsfile.JSONSchema,
	"tests":  limitstest.JSONSchema,
}

// newSchema returns the command rls schema.
func newSchema() *cobra.Command {
	kinds := slices.Sorted(maps.Keys(schemas))
	return &cobra.Command{
		Use:       "schema " + strings.Join(kinds, "|"),
		Short:     "Print the JSON Schema of limits files or test files, for editors",
		ValidArgs: kinds,
		Args:      cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			schema := schemas[args[0]]
			if schema == nil {
				return fmt.Errorf("schema: got %q, want %s", args[0], limitsfile.OneOf(args[0], kinds))
			}
			return explain.EncodeJSON(cmd.OutOrStdout(), schema())
		},
	}
}
