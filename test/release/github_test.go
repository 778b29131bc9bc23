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
	require.NoError(t, yaml.Unmarshal([]byte(readFile(t, ".github/dependabot.yml")), &config))
	watchedFolders := map[string][]string{}
	for _, u := range config.Updates {
		if u.Directory != "" {
			u.Directories = append(u.Directories, u.Directory)
		}
		watchedFolders[u.Ecosystem] = append(watchedFolders[u.Ecosystem], u.Directories...)
	}
	for ecosystem, name := range dependencyFiles {
		assert.ElementsMatch(t, foldersWith(t, name), watchedFolders[ecosystem], ecosystem)
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
	badges := regexp.MustCompile(`/actions/workflows/([\w.]+)/badge\.svg`).FindAllStringSubmatch(readFile(t, "README.md"), -1)
	require.NotEmpty(t, badges)
	for _, badge := range badges {
		assert.Contains(t, readFile(t, ".github/workflows/"+badge[1]), "branches: [main]", "the badge shows runs of main")
	}
}

var (
	usedAction   = regexp.MustCompile(`(?m)^\s*(?:- )?uses: *(.*)$`)
	pinnedAction = regexp.MustCompile(`^([\w-]+/[\w-]+)[\w/-]*@([0-9a-f]{40}) # (v\d+\.\d+\.\d+)$`)
)

// workflows returns the texts of the workflows by the names of their files.
func workflows(t *testing.T) map[string]string {
	t.Helper()
	files, err := fs.Glob(os.DirFS(repository), ".github/workflows/*.y*ml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	texts := map[string]string{}
	for _, file := range files {
		texts[file] = readFile(t, file)
	}
	return texts
}

func TestActionsArePinnedByHash(t *testing.T) {
	hashes := map[string]string{}
	for file, text := range workflows(t) {
		for _, use := range usedAction.FindAllStringSubmatch(text, -1) {
			if strings.HasPrefix(use[1], "./") {
				continue // a workflow of this repository
			}
			pinParts := pinnedAction.FindStringSubmatch(use[1])
			if !assert.NotNil(t, pinParts, "%s: %s: want ACTION@HASH # v1.2.3", file, use[1]) {
				continue
			}
			action, hash := pinParts[1]+" "+pinParts[3], pinParts[2]
			if knownHash, ok := hashes[action]; ok {
				assert.Equal(t, knownHash, hash, "%s: %s has two hashes", file, action)
			}
			hashes[action] = hash
		}
	}
	require.NotEmpty(t, hashes)
}

func TestWorkflowsCanOnlyReadUnlessAJobNeedsMore(t *testing.T) {
	for file, text := range workflows(t) {
		var workflow struct{ Permissions map[string]string }
		require.NoError(t, yaml.Unmarshal([]byte(text), &workflow))
		assert.Equal(t, map[string]string{"contents": "read"}, workflow.Permissions, file)
	}
}

func TestNoWorkflowRunsCodeOfAPullRequestWithSecrets(t *testing.T) {
	for file, text := range workflows(t) {
		for _, event := range []string{"pull_request_target", "workflow_run"} {
			assert.NotContains(t, text, event, file)
		}
	}
}
