package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/internal/base/fields"
	"github.com/seed-81f232ab/rls/internal/whatif/reports"
	"github.com/seed-81f232ab/rls/internal/whatif/limitstest"
)

// schemas has the JSON Schema of each kind of file.
var schemas = map[string]func() map[string]any{
	"limits": limitsfile.JSONSchema,
	"tests":  limitstest.JSONSchema,
}

// protocolKind is the kind of schema that describes the protocol.
const protocolKind = "protocol"

// newSchema returns the command rls schema.
func newSchema() *cobra.Command {
	kinds := append(slices.Sorted(maps.Keys(schemas)), protocolKind)
	return &cobra.Command{
		Use:   "schema " + strings.Join(kinds, "|"),
		Short: "Print the JSON Schema of limits files or test files, or the protocol for generators",
		Long: "schema limits and schema tests print a JSON Schema, for editors.\n" +
			"schema protocol prints Envoy's rate-limit protocol with all its imports as a\n" +
			"FileDescriptorSet, which protoc, grpcurl and libraries of gRPC read.",
		Example: "  rls schema protocol > rls.binpb\n" +
			"  protoc --descriptor_set_in=rls.binpb --python_out=. envoy/service/ratelimit/v3/rls.proto",
		ValidArgs: kinds,
		Args:      cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if args[0] == protocolKind {
				data, err := proto.Marshal(protocol())
				if err == nil {
					_, err = cmd.OutOrStdout().Write(data)
				}
				return err
			}
			schema := schemas[args[0]]
			if schema == nil {
				return fmt.Errorf("schema: got %q, want %s", args[0], fields.OneOf(args[0], kinds))
			}
			return reports.JSON(cmd.OutOrStdout(), schema())
		},
	}
}

// protocol returns the file of Envoy's rate-limit service and all files that it imports, each
// after its imports.
func protocol() *descriptorpb.FileDescriptorSet {
	set := new(descriptorpb.FileDescriptorSet)
	added := map[string]bool{}
	var add func(file protoreflect.FileDescriptor)
	add = func(file protoreflect.FileDescriptor) {
		if added[file.Path()] {
			return
		}
		added[file.Path()] = true
		imports := file.Imports()
		for i := range imports.Len() {
			add(imports.Get(i).FileDescriptor)
		}
		set.File = append(set.File, protodesc.ToFileDescriptorProto(file))
	}
	add(rlsv3.File_envoy_service_ratelimit_v3_rls_proto)
	return set
}
