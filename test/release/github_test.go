package release

import (
	"io/fs"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// dependencyFiles are the names of the files with dependencies, by the name that Dependabot has for
// their kind.
var dependencyFiles = map[string]string{
	"gomod": "go.mod", "docker": "Dockerfile", "pip": "requirements.txt", "npm": "package.json", "maven": "pom.xml",
}

func TestDependabotWatchesEachFileWithDependencies(t *testing.T) {
	var config struct {
		Updates []struct {
			Ecosystem   string `yaml:"package-ecosystem"`
			Directory   string
			Directories []string
		}
	}
	require.NoError(t, yaml.Unmarshal([]byte(read(t, ".github/dependabot.yml")), &config))
	watched := map[string][]string{}
	for _, u := range config.Updates {
		if u.Directory != "" {
			u.Directories = append(u.Directories, u.Directory)
		}
		watched[u.Ecosystem] = append(watched[u.Ecosystem], u.Directories...)
	}
	for ecosystem, name := range dependencyFiles {
		assert.ElementsMatch(t, foldersWith(t, name), watched[ecosystem], ecosystem)
	}
}

// foldersWith returns the folders of the repository that have a file of this name, such as /bench/plots.
func foldersWith(t *testing.T, name string) (folders []string) {
	t.Helper()
	require.NoError(t, fs.WalkDir(os.DirFS(repository), ".", func(file string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.Name() == "node_modules", entry.IsDir() && file != "." && strings.HasPrefix(entry.Name(), "."):
			return fs.SkipDir // installed programs
		case entry.Name() == name:
			folders = append(folders, path.Join("/", path.Dir(file)))
		}
		return nil
	}))
	return folders
}

func TestBadgesOfReadmeShowExistingWorkflows(t *testing.T) {
	badges := regexp.MustCompile(`/actions/workflows/([\w.]+)/badge\.svg`).FindAllStringSubmatch(read(t, "README.md"), -1)
	require.NotEmpty(t, badges)
	for _, badge := range badges {
		assert.Contains(t, read(t, ".github/workflows/"+badge[1]), "branches: [main]", "the badge shows runs of main")
	}
}
