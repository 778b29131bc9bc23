package deploy

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	k8syaml "sigs.k8s.io/yaml"

	"github.com/seed-81f232ab/rls/descriptors"
)

func path(name string) string { return filepath.Join("../..", name) }

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(path(name))
	require.NoError(t, err)
	return string(text)
}

// object is a document of a manifest.
type object struct {
	APIVersion, Kind string
	tree             map[string]any
}

// objects splits a manifest.
func objects(t *testing.T, text string) (all []object) {
	t.Helper()
	documents := yaml.NewDecoder(strings.NewReader(text))
	for {
		var tree map[string]any
		err := documents.Decode(&tree)
		if errors.Is(err, io.EOF) {
			return all
		}
		require.NoError(t, err)
		if tree == nil {
			continue
		}
		o := object{tree: tree}
		o.APIVersion, _ = tree["apiVersion"].(string)
		o.Kind, _ = tree["kind"].(string)
		all = append(all, o)
	}
}

// into fills a Kubernetes type, and refuses fields that it doesn't have.
func (o object) into(t *testing.T, to any) {
	t.Helper()
	text, err := yaml.Marshal(o.tree)
	require.NoError(t, err)
	require.NoError(t, k8syaml.UnmarshalStrict(text, to))
}

// spec fills a protobuf message with the part spec, and refuses unknown fields.
func (o object) spec(t *testing.T, to proto.Message) {
	t.Helper()
	text, err := json.Marshal(o.tree["spec"])
	require.NoError(t, err)
	require.NoError(t, protojson.Unmarshal(text, to))
}

// compiles checks the text of a limits file.
func compiles(t *testing.T, text string) *descriptors.Config {
	t.Helper()
	cfg, err := descriptors.Compile([]descriptors.File{{Name: "limits.yaml", Data: []byte(text)}}, descriptors.Options{})
	require.NoError(t, err)
	assert.Empty(t, cfg.Warnings)
	return cfg
}

var settingName = regexp.MustCompile("(?m)^\\| `([A-Z0-9_]+)` \\|")

// known checks that rls has a setting of that name.
func known(t *testing.T, setting string) {
	t.Helper()
	for _, m := range settingName.FindAllStringSubmatch(read(t, "docs/settings.md"), -1) {
		if m[1] == setting {
			return
		}
	}
	assert.Fail(t, "rls has no setting "+setting)
}

func trim(text []byte) string { return string(bytes.TrimSpace(text)) }
