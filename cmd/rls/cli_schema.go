package main

import (
	"io"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/internal/whatif/limitstest"
	"github.com/seed-81f232ab/rls/internal/whatif/reports"
)

var schemas = map[string]func(io.Writer) error{
	"limits":   func(out io.Writer) error { return reports.JSON(out, limitsfile.JSONSchema()) },
	"tests":    func(out io.Writer) error { return reports.JSON(out, limitstest.JSONSchema()) },
	"protocol": writeProtocol,
}

func newSchema() *cobra.Command {
	return printOneOf(schemas, &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of limits files or test files, or the protocol for generators",
		Long: "schema limits and schema tests print a JSON Schema, for editors.\n" +
			"schema protocol prints Envoy's rate-limit protocol with all its imports as a\n" +
			"FileDescriptorSet, which protoc, grpcurl and libraries of gRPC read.",
		Example: "  rls schema protocol > rls.binpb\n" +
			"  protoc --descriptor_set_in=rls.binpb --python_out=. envoy/service/ratelimit/v3/rls.proto",
		ValidArgs: []string{"limits", "tests", "protocol"},
	})
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
