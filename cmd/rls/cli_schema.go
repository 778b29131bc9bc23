package main

import (
	"fmt"
	"io"
	"strings"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/seed-81f232ab/rls/docs/schema"
	"github.com/seed-81f232ab/rls/internal/base/fields"
)

var schemas = map[string]func(io.Writer) error{
	"limits":   func(out io.Writer) error { _, err := io.WriteString(out, schema.Limits); return err },
	"tests":    func(out io.Writer) error { _, err := io.WriteString(out, schema.Tests); return err },
	"protocol": writeProtocol,
}

func newSchema() *cobra.Command {
	kinds := []string{"limits", "tests", "protocol"}
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
			write := schemas[args[0]]
			if write == nil {
				return fmt.Errorf("schema: got %q, want %s", args[0], fields.OneOf(args[0], kinds))
			}
			return write(cmd.OutOrStdout())
		},
	}
}

// writeProtocol writes a FileDescriptorSet with the file of Envoy's rate-limit service, and with all imported files. Each
// file comes after its imports.
func writeProtocol(out io.Writer) error {
	set := new(descriptorpb.FileDescriptorSet)
	isAdded := map[string]bool{}
	var addFile func(file protoreflect.FileDescriptor)
	addFile = func(file protoreflect.FileDescriptor) {
		if isAdded[file.Path()] {
			return
		}
		isAdded[file.Path()] = true
		imports := file.Imports()
		for i := range imports.Len() {
			addFile(imports.Get(i).FileDescriptor)
		}
		set.File = append(set.File, protodesc.ToFileDescriptorProto(file))
	}
	addFile(rlsv3.File_envoy_service_ratelimit_v3_rls_proto)
	data, err := proto.Marshal(set)
	if err == nil {
		_, err = out.Write(data)
	}
	return err
}
