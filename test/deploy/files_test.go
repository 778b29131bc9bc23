package deploy

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	k8syaml "sigs.k8s.io/yaml"

	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
)

// path returns the path of a file of the repository.
func path(name string) string { return filepath.Join("../..", name) }

func readFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(path(name))
	require.NoError(t, err)
	return string(text)
}

// object is one document of a manifest.
type object struct {
	APIVersion, Kind string
	fields           map[string]any
}

// objects returns the documents of a manifest.
func objects(t *testing.T, text string) (manifest []object) {
	t.Helper()
	documents := yaml.NewDecoder(strings.NewReader(text))
	for {
		var fields map[string]any
		err := documents.Decode(&fields)
		if errors.Is(err, io.EOF) {
			return manifest
		}
		require.NoError(t, err)
		if fields == nil {
			continue
		}
		o := object{fields: fields}
		o.APIVersion, _ = fields["apiVersion"].(string)
		o.Kind, _ = fields["kind"].(string)
		manifest = append(manifest, o)
	}
}

// decode fills a Kubernetes type. Unknown fields fail the test.
func (o object) decode(t *testing.T, target any) {
	t.Helper()
	text, err := yaml.Marshal(o.fields)
	require.NoError(t, err)
	require.NoError(t, k8syaml.UnmarshalStrict(text, target))
}

// decodeSpec fills a protobuf message with the field spec. Unknown fields fail the test.
func (o object) decodeSpec(t *testing.T, target proto.Message) {
	t.Helper()
	text, err := json.Marshal(o.fields["spec"])
	require.NoError(t, err)
	require.NoError(t, protojson.Unmarshal(text, target))
}

// compile compiles the text of a limits file, which must cause no warnings.
func compile(t *testing.T, text string) *descriptors.Config {
	t.Helper()
	set, err := limitsfile.Parse([]limitsfile.File{{Name: "limits.yaml", Data: []byte(text)}}, limitsfile.Options{})
	require.NoError(t, err)
	assert.Empty(t, set.Warnings)
	return descriptors.Compile(set)
}

var settingName = regexp.MustCompile("(?m)^\\| `([A-Z0-9_]+)` \\|")

// settingNames returns the settings of rls, in the order of docs/settings.md.
func settingNames(t *testing.T) (names []string) {
	t.Helper()
	ownSettings, _, found := strings.Cut(readFile(t, "docs/settings.md"), "\n## ") // settings of the incumbent follow
	require.True(t, found)
	for _, m := range settingName.FindAllStringSubmatch(ownSettings, -1) {
		names = append(names, m[1])
	}
	require.Greater(t, len(names), 100, "docs/settings.md has another form")
	return names
}

// assertSetting checks that docs/settings.md lists the setting.
func assertSetting(t *testing.T, setting string) {
	t.Helper()
	assert.True(t, slices.Contains(settingNames(t), setting), "unknown setting %s", setting)
}

func trim(text []byte) string { return string(bytes.TrimSpace(text)) }
