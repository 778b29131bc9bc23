package file

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
)

// newTree creates files in a new directory and returns the path of the directory. The key of files is a path. The value
// is the text of the file, or "-> " and the target of a symbolic link.
func newTree(t *testing.T, files map[string]string) string {
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

// pathsBelow returns the paths of files and of skipped entries, without root.
func pathsBelow(t *testing.T, root string, files []limitsfile.File, skipped []SkippedEntry) (readPaths, skippedPaths []string) {
	t.Helper()
	pathBelow := func(path string) string {
		path, err := filepath.Rel(root, path)
		require.NoError(t, err)
		return path
	}
	for _, f := range files {
		readPaths = append(readPaths, pathBelow(f.Name))
	}
	for _, s := range skipped {
		skippedPaths = append(skippedPaths, pathBelow(s.Path))
	}
	return readPaths, skippedPaths
}

func TestReadReturnsLimitsFilesOfDirectory(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name           string
		files          map[string]string
		ignoreDotFiles bool
		read           []string
		skipped        []string
	}{
		{
			name:  "files with extension yaml, yml, json or none are read at any depth, sorted by path",
			files: map[string]string{"b.yml": "", "a.yaml": "", "c.JSON": "", "limits": "", "a/z.yaml": "", "a/b/c.yaml": ""},
			read:  []string{"a.yaml", "a/b/c.yaml", "a/z.yaml", "b.yml", "c.JSON", "limits"},
		},
		{
			name:    "files with another extension are skipped",
			files:   map[string]string{"a.yaml": "", "README.md": "", "a.yaml.bak": "", ".gitignore": ""},
			read:    []string{"a.yaml"},
			skipped: []string{".gitignore", "README.md", "a.yaml.bak"},
		},
		{
			name:    "test files are skipped",
			files:   map[string]string{"a.yaml": "", "a_test.yaml": "", "test.yaml": ""},
			read:    []string{"a.yaml", "test.yaml"},
			skipped: []string{"a_test.yaml"},
		},
		{
			name:  "backup and swap files of editors are ignored",
			files: map[string]string{"a.yaml": "", "a.yaml~": "", "b~": "", ".a.yaml.swp": "", ".a.yaml.swx": "", ".#a.yaml": ""},
			read:  []string{"a.yaml"},
		},
		{
			name:  "dot files and directories are read by default",
			files: map[string]string{".a.yaml": "", ".b/c.yaml": ""},
			read:  []string{".a.yaml", ".b/c.yaml"},
		},
		{
			name:           "dot files and directories are ignored if the place says so",
			files:          map[string]string{".a.yaml": "", ".b/c.yaml": "", "d.yaml": ""},
			ignoreDotFiles: true,
			read:           []string{"d.yaml"},
		},
		{
			name: "files of a Kubernetes ConfigMap are read once",
			files: map[string]string{
				"..2024_05_01_10_00_00.123/limits.yaml": "", "..data": "-> ..2024_05_01_10_00_00.123",
				"limits.yaml": "-> ..data/limits.yaml",
			},
			read: []string{"limits.yaml"},
		},
		{
			name: "files in sub-directories of a Kubernetes ConfigMap are read once",
			files: map[string]string{
				"..1/sub.d/limits.yaml": "", "..1/sub.d/more/limits": "", "..data": "-> ..1", "sub.d": "-> ..data/sub.d",
			},
			read: []string{"sub.d/limits.yaml", "sub.d/more/limits"},
		},
		{
			name:    "a link to a directory is skipped",
			files:   map[string]string{"a.yaml": "", "more": "-> /tmp"},
			read:    []string{"a.yaml"},
			skipped: []string{"more"},
		},
		{
			name:    "a dangling link to an ignored file is no error",
			files:   map[string]string{"a.yaml": "", "x.md": "-> nowhere", ".#a.yaml": "-> me@host.1"},
			read:    []string{"a.yaml"},
			skipped: []string{"x.md"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			root := newTree(t, test.files)
			files, skipped, err := Place{Root: root, IgnoreDotFiles: test.ignoreDotFiles}.Read()
			require.NoError(t, err)
			readPaths, skippedPaths := pathsBelow(t, root, files, skipped)
			assert.Equal(t, test.read, readPaths)
			assert.Equal(t, test.skipped, skippedPaths)
		})
	}
}

func TestReadAcceptsAnyExtensionOfANamedFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(newTree(t, map[string]string{"limits.conf": "domain: d"}), "limits.conf")
	files, _, err := Place{Root: path}.Read()
	require.NoError(t, err)
	assert.Equal(t, []limitsfile.File{{Name: path, Data: []byte("domain: d")}}, files)
}

func TestReadFollowsLinkThatIsTheRoot(t *testing.T) {
	t.Parallel()
	root := newTree(t, map[string]string{"real/a.yaml": "x", "link": "-> real", "file": "-> real/a.yaml"})
	files, _, err := Place{Root: filepath.Join(root, "link")}.Read()
	require.NoError(t, err)
	require.Len(t, files, 1)
	assert.Equal(t, filepath.Join(root, "link", "a.yaml"), files[0].Name, "the path has the link's name")

	_, _, err = Place{Root: filepath.Join(root, "file")}.Read()
	assert.NoError(t, err)
}

func TestReadErrorNamesPathAndCause(t *testing.T) {
	t.Parallel()
	root := newTree(t, map[string]string{
		"dangling/a.yaml": "-> nowhere", "empty/x.md": "", "none/.keep": "",
		"large/a.yaml": "", "secret/a.yaml": "", "two/a.yaml": "-> nowhere", "two/b.yaml": "-> nowhere",
	})
	require.NoError(t, os.Truncate(filepath.Join(root, "large/a.yaml"), 50<<20))
	require.NoError(t, os.Chmod(filepath.Join(root, "secret/a.yaml"), 0))
	require.NoError(t, syscall.Mkfifo(filepath.Join(root, "pipe"), 0o644))

	type readError struct {
		path, want string
		wraps      error
	}
	tests := []readError{
		{"missing", "missing: no such file or directory", fs.ErrNotExist},
		{"dangling", "dangling/a.yaml: a symbolic link to a file that doesn't exist", nil},
		{"empty", "empty: no limits files", ErrNoFiles},
		{"none", "none: no limits files", ErrNoFiles},
		{"large", "large/a.yaml: the file is too large; maximum is 16 MiB", nil},
		{"pipe", "pipe: neither a file nor a directory", nil},
		{"two", "two/b.yaml: a symbolic link", nil},
	}
	if os.Geteuid() != 0 { // root may read everything
		tests = append(tests, readError{"secret", "secret/a.yaml: permission denied", fs.ErrPermission})
	}
	for _, test := range tests {
		t.Run(test.path, func(t *testing.T) {
			files, _, err := Place{Root: filepath.Join(root, test.path)}.Read()
			require.Error(t, err)
			assert.Empty(t, files)
			assert.Contains(t, err.Error(), filepath.Join(root, test.want))
			if test.wraps != nil {
				assert.ErrorIs(t, err, test.wraps)
			}
		})
	}
}

func TestReadBoundsAllFilesTogether(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for _, name := range []string{"1", "2", "3", "4", "5", "6"} {
		path := filepath.Join(root, name)
		require.NoError(t, os.WriteFile(path, nil, 0o644))
		require.NoError(t, os.Truncate(path, limitsfile.DefaultMaxFileBytes))
	}
	_, _, err := Place{Root: root}.Read()
	assert.EqualError(t, err, filepath.Join(root, "5")+": the limits files are too large together; maximum is 64 MiB", "the sixth file isn't read")
	require.NoError(t, os.Remove(filepath.Join(root, "5")))
	require.NoError(t, os.Remove(filepath.Join(root, "6")))
	files, _, err := Place{Root: root}.Read()
	assert.NoError(t, err)
	assert.Len(t, files, 4)
}

func TestReadSkipsPipes(t *testing.T) {
	t.Parallel()
	root := newTree(t, map[string]string{"a.yaml": ""})
	require.NoError(t, syscall.Mkfifo(filepath.Join(root, "pipe"), 0o644))
	files, skipped, err := Place{Root: root}.Read()
	require.NoError(t, err)
	readPaths, skippedPaths := pathsBelow(t, root, files, skipped)
	assert.Equal(t, []string{"a.yaml"}, readPaths)
	assert.Equal(t, []string{"pipe"}, skippedPaths)
	assert.Equal(t, "not a regular file", skipped[0].Reason)
}

func TestWatchRootAddsSiblingsOfAppDirectory(t *testing.T) {
	t.Parallel()
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
		place   Place
		read    []string
		skipped []string
	}{
		{
			name:    "with WatchRoot the app directory and its siblings",
			place:   Place{Subdirectory: "ratelimit", AppDirectory: "config", WatchRoot: true},
			read:    []string{"ratelimit/config.d/b.yaml", "ratelimit/config.yaml", "ratelimit/config/a.yaml", "ratelimit/config/deep/z.yaml"},
			skipped: []string{"ratelimit/config.txt"},
		},
		{
			name:  "without WatchRoot only the app directory",
			place: Place{Subdirectory: "ratelimit", AppDirectory: "config"},
			read:  []string{"ratelimit/config/a.yaml", "ratelimit/config/deep/z.yaml"},
		},
		{
			name:  "without a subdirectory",
			place: Place{AppDirectory: "ratelimit", WatchRoot: true},
			read: []string{
				"ratelimit/config.d/b.yaml", "ratelimit/config.yaml", "ratelimit/config/a.yaml",
				"ratelimit/config/deep/z.yaml", "ratelimit/configx/c.yaml", "ratelimit/other.yaml",
			},
			skipped: []string{"ratelimit/config.txt"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			root := newTree(t, layout)
			test.place.Root = root
			files, skipped, err := test.place.Read()
			require.NoError(t, err)
			readPaths, skippedPaths := pathsBelow(t, root, files, skipped)
			assert.Equal(t, test.read, readPaths)
			assert.Equal(t, test.skipped, skippedPaths)
		})
	}
}

func TestRootOfPlaceMayBeALink(t *testing.T) {
	t.Parallel()
	root := newTree(t, map[string]string{"v1/ratelimit/config/a.yaml": "", "current": "-> v1"})
	for _, watchRoot := range []bool{false, true} {
		files, _, err := Place{filepath.Join(root, "current"), "ratelimit", "config", watchRoot, false}.Read()
		require.NoError(t, err)
		assert.Len(t, files, 1)
	}
}

func TestPlaceWithoutFilesIsAnError(t *testing.T) {
	t.Parallel()
	root := newTree(t, map[string]string{"ratelimit/other/a.yaml": ""})
	_, _, err := Place{root, "ratelimit", "config", true, false}.Read()
	assert.ErrorIs(t, err, ErrNoFiles)
	assert.ErrorContains(t, err, filepath.Join(root, "ratelimit/config"))

	for _, watchRoot := range []bool{false, true} {
		_, _, err = Place{root, "nowhere", "config", watchRoot, false}.Read()
		assert.ErrorIs(t, err, fs.ErrNotExist)
		assert.ErrorContains(t, err, "nowhere")
	}
}
