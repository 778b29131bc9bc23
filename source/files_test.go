package source

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/descriptors"
)

// tree makes files in a new directory; a text that starts with "-> " makes a
// symbolic link.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		if target, ok := strings.CutPrefix(text, "-> "); ok {
			require.NoError(t, os.Symlink(target, path))
		} else {
			require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
		}
	}
	return root
}

// names are the paths of what was read and skipped, below root.
func names(t *testing.T, root string, files []descriptors.File, skipped []Skipped) (read, left []string) {
	t.Helper()
	rel := func(path string) string {
		r, err := filepath.Rel(root, path)
		require.NoError(t, err)
		return r
	}
	for _, f := range files {
		read = append(read, rel(f.Name))
	}
	for _, s := range skipped {
		left = append(left, rel(s.Path))
	}
	return read, left
}

func TestFilesOfADirectory(t *testing.T) {
	for _, test := range []struct {
		name    string
		files   map[string]string
		options Options
		read    []string
		skipped []string
	}{
		{
			name:  "yaml, yml, json and no extension count, at any depth, sorted by path",
			files: map[string]string{"b.yml": "", "a.yaml": "", "c.JSON": "", "limits": "", "a/z.yaml": "", "a/b/c.yaml": ""},
			read:  []string{"a.yaml", "a/b/c.yaml", "a/z.yaml", "b.yml", "c.JSON", "limits"},
		},
		{
			name:    "what else lies around is skipped",
			files:   map[string]string{"a.yaml": "", "README.md": "", "a.yaml.bak": "", ".gitignore": ""},
			read:    []string{"a.yaml"},
			skipped: []string{".gitignore", "README.md", "a.yaml.bak"},
		},
		{
			name:  "what editors keep is left out without a word",
			files: map[string]string{"a.yaml": "", "a.yaml~": "", "b~": "", ".a.yaml.swp": "", ".a.yaml.swx": "", ".#a.yaml": ""},
			read:  []string{"a.yaml"},
		},
		{
			name:  "dot files and directories count",
			files: map[string]string{".a.yaml": "", ".b/c.yaml": ""},
			read:  []string{".a.yaml", ".b/c.yaml"},
		},
		{
			name:    "dot files and directories don't count if they are to be ignored",
			files:   map[string]string{".a.yaml": "", ".b/c.yaml": "", "d.yaml": ""},
			options: Options{IgnoreDotFiles: true},
			read:    []string{"d.yaml"},
		},
		{
			name: "a Kubernetes ConfigMap counts once",
			files: map[string]string{
				"..2024_05_01_10_00_00.123/limits.yaml": "", "..data": "-> ..2024_05_01_10_00_00.123",
				"limits.yaml": "-> ..data/limits.yaml",
			},
			read: []string{"limits.yaml"},
		},
		{
			name: "so it does with files below directories",
			files: map[string]string{
				"..1/sub.d/limits.yaml": "", "..1/sub.d/more/limits": "", "..data": "-> ..1", "sub.d": "-> ..data/sub.d",
			},
			read: []string{"sub.d/limits.yaml", "sub.d/more/limits"},
		},
		{
			name:    "a link to a directory inside is skipped",
			files:   map[string]string{"a.yaml": "", "more": "-> /tmp"},
			read:    []string{"a.yaml"},
			skipped: []string{"more"},
		},
		{
			name:    "a dangling link that wouldn't count does no harm",
			files:   map[string]string{"a.yaml": "", "x.md": "-> nowhere", ".#a.yaml": "-> me@host.1"},
			read:    []string{"a.yaml"},
			skipped: []string{"x.md"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			root := tree(t, test.files)
			files, skipped, err := Files(root, test.options)
			require.NoError(t, err)
			read, left := names(t, root, files, skipped)
			assert.Equal(t, test.read, read)
			assert.Equal(t, test.skipped, left)
		})
	}
}

func TestAFileNamedDirectlyCountsWhateverItsName(t *testing.T) {
	path := filepath.Join(tree(t, map[string]string{"limits.conf": "domain: d"}), "limits.conf")
	files, _, err := Files(path, Options{})
	require.NoError(t, err)
	assert.Equal(t, []descriptors.File{{Name: path, Data: []byte("domain: d")}}, files)
}

func TestALinkAsTheRootIsFollowed(t *testing.T) {
	root := tree(t, map[string]string{"real/a.yaml": "x", "link": "-> real", "file": "-> real/a.yaml"})
	files, _, err := Files(filepath.Join(root, "link"), Options{})
	require.NoError(t, err)
	require.Len(t, files, 1)
	assert.Equal(t, filepath.Join(root, "link", "a.yaml"), files[0].Name, "as its user would type it")

	_, _, err = Files(filepath.Join(root, "file"), Options{})
	assert.NoError(t, err)
}

func TestFilesErrors(t *testing.T) {
	root := tree(t, map[string]string{
		"dangling/a.yaml": "-> nowhere", "empty/x.md": "", "none/.keep": "",
		"large/a.yaml": "", "secret/a.yaml": "", "two/a.yaml": "-> nowhere", "two/b.yaml": "-> nowhere",
	})
	require.NoError(t, os.Truncate(filepath.Join(root, "large/a.yaml"), 50<<20))
	require.NoError(t, os.Chmod(filepath.Join(root, "secret/a.yaml"), 0))
	require.NoError(t, syscall.Mkfifo(filepath.Join(root, "pipe"), 0o644))

	for _, test := range []struct {
		path, want string
		is         error
	}{
		{"missing", "missing: no such file or directory", fs.ErrNotExist},
		{"dangling", "dangling/a.yaml: a symbolic link to a file that doesn't exist", nil},
		{"empty", "empty: no limits files", ErrNoFiles},
		{"none", "none: no limits files", ErrNoFiles},
		{"large", "large/a.yaml: more than 16 MiB", nil},
		{"pipe", "pipe: neither a file nor a directory", nil},
		{"secret", "secret/a.yaml: permission denied", fs.ErrPermission},
		{"two", "two/b.yaml: a symbolic link", nil},
	} {
		t.Run(test.path, func(t *testing.T) {
			if test.path == "secret" && os.Geteuid() == 0 {
				t.Skip("root may read everything")
			}
			files, _, err := Files(filepath.Join(root, test.path), Options{})
			require.Error(t, err)
			assert.Empty(t, files)
			assert.Contains(t, err.Error(), filepath.Join(root, test.want))
			if test.is != nil {
				assert.ErrorIs(t, err, test.is)
			}
		})
	}
}

func TestFilesAreTooMuchTogether(t *testing.T) {
	root := t.TempDir()
	for _, name := range []string{"1", "2", "3", "4", "5", "6"} {
		path := filepath.Join(root, name)
		require.NoError(t, os.WriteFile(path, nil, 0o644))
		require.NoError(t, os.Truncate(path, descriptors.MaxFileBytes))
	}
	_, _, err := Files(root, Options{})
	assert.EqualError(t, err, filepath.Join(root, "5")+": the limits files are more than 64 MiB together", "the sixth isn't read")
	require.NoError(t, os.Remove(filepath.Join(root, "5")))
	require.NoError(t, os.Remove(filepath.Join(root, "6")))
	files, _, err := Files(root, Options{})
	assert.NoError(t, err)
	assert.Len(t, files, 4)
}

func TestPipesAndSocketsInADirectoryAreSkipped(t *testing.T) {
	root := tree(t, map[string]string{"a.yaml": ""})
	require.NoError(t, syscall.Mkfifo(filepath.Join(root, "pipe"), 0o644))
	files, skipped, err := Files(root, Options{})
	require.NoError(t, err)
	read, left := names(t, root, files, skipped)
	assert.Equal(t, []string{"a.yaml"}, read)
	assert.Equal(t, []string{"pipe"}, left)
	assert.Equal(t, "not a regular file", skipped[0].Reason)
}

func TestRuntimeFiles(t *testing.T) {
	layout := map[string]string{
		"ratelimit/config/a.yaml":      "",
		"ratelimit/config/deep/z.yaml": "",
		"ratelimit/config.yaml":        "",
		"ratelimit/config.txt":         "",
		"ratelimit/config.d/b.yaml":    "",
		"ratelimit/configx/c.yaml":     "",
		"ratelimit/other.yaml":         "",
	}
	for _, test := range []struct {
		name    string
		runtime Runtime
		read    []string
		skipped []string
	}{
		{
			name:    "watching the root takes the app directory and what is named after it",
			runtime: Runtime{Subdirectory: "ratelimit", AppDirectory: "config", WatchRoot: true},
			read:    []string{"ratelimit/config.d/b.yaml", "ratelimit/config.yaml", "ratelimit/config/a.yaml", "ratelimit/config/deep/z.yaml"},
			skipped: []string{"ratelimit/config.txt"},
		},
		{
			name:    "else only the app directory",
			runtime: Runtime{Subdirectory: "ratelimit", AppDirectory: "config"},
			read:    []string{"ratelimit/config/a.yaml", "ratelimit/config/deep/z.yaml"},
		},
		{
			name:    "without a subdirectory",
			runtime: Runtime{AppDirectory: "ratelimit", WatchRoot: true},
			read: []string{
				"ratelimit/config.d/b.yaml", "ratelimit/config.yaml", "ratelimit/config/a.yaml",
				"ratelimit/config/deep/z.yaml", "ratelimit/configx/c.yaml", "ratelimit/other.yaml",
			},
			skipped: []string{"ratelimit/config.txt"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			root := tree(t, layout)
			test.runtime.Root = root
			files, skipped, err := test.runtime.Files(Options{})
			require.NoError(t, err)
			read, left := names(t, root, files, skipped)
			assert.Equal(t, test.read, read)
			assert.Equal(t, test.skipped, left)
		})
	}
}

func TestRuntimeFilesWithALinkedRoot(t *testing.T) {
	root := tree(t, map[string]string{"v1/ratelimit/config/a.yaml": "", "current": "-> v1"})
	for _, watchRoot := range []bool{false, true} {
		files, _, err := Runtime{filepath.Join(root, "current"), "ratelimit", "config", watchRoot}.Files(Options{})
		require.NoError(t, err)
		assert.Len(t, files, 1)
	}
}

func TestRuntimeFilesErrors(t *testing.T) {
	root := tree(t, map[string]string{"ratelimit/other/a.yaml": ""})
	_, _, err := Runtime{root, "ratelimit", "config", true}.Files(Options{})
	assert.ErrorIs(t, err, ErrNoFiles)
	assert.ErrorContains(t, err, filepath.Join(root, "ratelimit/config"))

	for _, watchRoot := range []bool{false, true} {
		_, _, err = Runtime{root, "nowhere", "config", watchRoot}.Files(Options{})
		assert.ErrorIs(t, err, fs.ErrNotExist)
		assert.ErrorContains(t, err, "nowhere")
	}
}
