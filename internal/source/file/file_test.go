package file

import (
	"bytes"
	"context"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/internal/source"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const interval = time.Second

// runningSource is a Source that polls its files. The test runs with the clock of synctest, so waiting takes no time.
type runningSource struct {
	*Source
	t         *testing.T
	root      string
	snapshots chan *snapshot
}

// startSettledSource runs a Source of place, which is below root, and waits for the first snapshot.
func startSettledSource(t *testing.T, root string, place Place) *runningSource {
	source := startSource(t, root, place)
	source.nextSnapshot()
	source.requireNoSnapshot()
	return source
}

// startSource runs a Source of place, which is below root.
func startSource(t *testing.T, root string, place Place) *runningSource {
	place.Root = filepath.Join(root, place.Root)
	f := &runningSource{New(Options{Place: place, Interval: interval, Log: slog.New(slog.DiscardHandler)}), t, root, make(chan *snapshot, 1000)}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		assert.ErrorIs(t, f.poll(ctx, func(n *snapshot) { f.snapshots <- n }, func() {}), context.Canceled)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return f
}

// nextSnapshot returns the next snapshot, and fails the test if no snapshot comes within three intervals.
func (f *runningSource) nextSnapshot() *snapshot {
	f.t.Helper()
	select {
	case n := <-f.snapshots:
		return n
	case <-time.After(3 * interval):
		require.FailNow(f.t, "no snapshot comes")
		return nil
	}
}

// requireNoSnapshot fails the test if a snapshot comes within three intervals.
func (f *runningSource) requireNoSnapshot() {
	f.t.Helper()
	select {
	case n := <-f.snapshots:
		assert.Fail(f.t, "a snapshot comes without a change", "%v %v", f.contents(n), n.err)
	case <-time.After(3 * interval):
	}
}

// contents returns the contents of the files of n. The key is the path below the root.
func (f *runningSource) contents(n *snapshot) map[string]string {
	f.t.Helper()
	contents := map[string]string{}
	for _, file := range n.files {
		path, err := filepath.Rel(f.root, file.Name)
		require.NoError(f.t, err)
		contents[path] = string(file.Data)
	}
	return contents
}

// writeFile writes text into a file. It writes until the modification time of the file has changed, because the clock
// of the file system is coarse.
func writeFile(t *testing.T, path, text string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	oldInfo, err := os.Stat(path)
	for {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
		if err != nil || !modTime(t, path).Equal(oldInfo.ModTime()) {
			return
		}
	}
}

func modTime(t *testing.T, path string) time.Time {
	t.Helper()
	info, err := os.Stat(path)
	require.NoError(t, err)
	return info.ModTime()
}

func rename(t *testing.T, from, to string) {
	t.Helper()
	require.NoError(t, os.Rename(from, to))
}

func symlink(t *testing.T, target, path string) {
	t.Helper()
	require.NoError(t, os.Symlink(target, path))
}

// TestEveryKindOfChangeIsAppliedOnce changes the files of a directory in one way, and expects one snapshot with the
// change.
func TestEveryKindOfChangeIsAppliedOnce(t *testing.T) {
	t.Parallel()
	configMap := map[string]string{
		"..1/a.yaml": "old", "..data": "-> ..1", "a.yaml": "-> ..data/a.yaml",
	}
	for _, test := range []struct {
		name   string
		files  map[string]string
		place  Place // the path below the root
		change func(t *testing.T, root string)
		want   map[string]string
	}{
		{
			name:   "an edit in place",
			files:  map[string]string{"a.yaml": "old", "b.yaml": "b"},
			change: func(t *testing.T, root string) { writeFile(t, root+"/a.yaml", "new") },
			want:   map[string]string{"a.yaml": "new", "b.yaml": "b"},
		},
		{
			name:   "an edit of the file that the place names",
			files:  map[string]string{"a.conf": "old"},
			place:  Place{Root: "a.conf"},
			change: func(t *testing.T, root string) { writeFile(t, root+"/a.conf", "new") },
			want:   map[string]string{"a.conf": "new"},
		},
		{
			name:  "an editor that renames a new file over the old file",
			files: map[string]string{"a.yaml": "old"},
			change: func(t *testing.T, root string) {
				writeFile(t, root+"/.a.yaml.tmp~", "new")
				rename(t, root+"/.a.yaml.tmp~", root+"/a.yaml")
			},
			want: map[string]string{"a.yaml": "new"},
		},
		{
			name:  "a rename over the file that the place names",
			files: map[string]string{"a.yaml": "old"},
			place: Place{Root: "a.yaml"},
			change: func(t *testing.T, root string) {
				writeFile(t, root+"/tmp", "new")
				rename(t, root+"/tmp", root+"/a.yaml")
			},
			want: map[string]string{"a.yaml": "new"},
		},
		{
			name:   "a file added",
			files:  map[string]string{"a.yaml": "a"},
			change: func(t *testing.T, root string) { writeFile(t, root+"/b.yaml", "b") },
			want:   map[string]string{"a.yaml": "a", "b.yaml": "b"},
		},
		{
			name:   "a file removed",
			files:  map[string]string{"a.yaml": "a", "b.yaml": "b"},
			change: func(t *testing.T, root string) { require.NoError(t, os.Remove(root+"/b.yaml")) },
			want:   map[string]string{"a.yaml": "a"},
		},
		{
			name:   "a file moved out of the place",
			files:  map[string]string{"in/a.yaml": "a", "in/b.yaml": "b"},
			place:  Place{Root: "in"},
			change: func(t *testing.T, root string) { rename(t, root+"/in/b.yaml", root+"/b.yaml") },
			want:   map[string]string{"in/a.yaml": "a"},
		},
		{
			name:   "an edit in a sub-directory of a sub-directory",
			files:  map[string]string{"a.yaml": "a", "x/y/b.yaml": "old"},
			change: func(t *testing.T, root string) { writeFile(t, root+"/x/y/b.yaml", "new") },
			want:   map[string]string{"a.yaml": "a", "x/y/b.yaml": "new"},
		},
		{
			name:   "a new sub-directory with files",
			files:  map[string]string{"a.yaml": "a"},
			change: func(t *testing.T, root string) { writeFile(t, root+"/x/y/b.yaml", "b") },
			want:   map[string]string{"a.yaml": "a", "x/y/b.yaml": "b"},
		},
		{
			name:  "a new target of the symlink that is the root",
			files: map[string]string{"v1/config/a.yaml": "old", "v2/config/a.yaml": "new", "current": "-> v1"},
			place: Place{Root: "current", AppDirectory: "config", WatchRoot: true},
			change: func(t *testing.T, root string) {
				symlink(t, "v2", root+"/next")
				rename(t, root+"/next", root+"/current")
			},
			want: map[string]string{"current/config/a.yaml": "new"},
		},
		{
			name:   "an edit in the target of the symlink that is the root",
			files:  map[string]string{"v1/config/a.yaml": "old", "current": "-> v1"},
			place:  Place{Root: "current", AppDirectory: "config", WatchRoot: true},
			change: func(t *testing.T, root string) { writeFile(t, root+"/v1/config/a.yaml", "new") },
			want:   map[string]string{"current/config/a.yaml": "new"},
		},
		{
			name:   "a new file beside the app directory",
			files:  map[string]string{"r/config/a.yaml": "a"},
			place:  Place{Root: "r", AppDirectory: "config", WatchRoot: true},
			change: func(t *testing.T, root string) { writeFile(t, root+"/r/config.yaml", "new") },
			want:   map[string]string{"r/config/a.yaml": "a", "r/config.yaml": "new"},
		},
		{
			name:  "a new target of a symlink above the root",
			files: map[string]string{"v1/r/config/a.yaml": "old", "v2/r/config/a.yaml": "new", "l1": "-> l2", "l2": "-> v1"},
			place: Place{Root: "l1/r", AppDirectory: "config"},
			change: func(t *testing.T, root string) {
				symlink(t, "v2", root+"/next")
				rename(t, root+"/next", root+"/l2")
			},
			want: map[string]string{"l1/r/config/a.yaml": "new"},
		},
		{
			name:  "the next version of a Kubernetes ConfigMap",
			files: configMap,
			change: func(t *testing.T, root string) {
				writeFile(t, root+"/..2/a.yaml", "new")
				symlink(t, "..2", root+"/..data_tmp")
				rename(t, root+"/..data_tmp", root+"/..data")
				require.NoError(t, os.RemoveAll(root+"/..1"))
			},
			want: map[string]string{"a.yaml": "new"},
		},
		{
			name:  "the next version of a Kubernetes ConfigMap, with one more key",
			files: configMap,
			change: func(t *testing.T, root string) {
				writeFile(t, root+"/..2/a.yaml", "new")
				writeFile(t, root+"/..2/b.yaml", "b")
				symlink(t, "..2", root+"/..data_tmp")
				rename(t, root+"/..data_tmp", root+"/..data")
				symlink(t, "..data/b.yaml", root+"/b.yaml")
				require.NoError(t, os.RemoveAll(root+"/..1"))
			},
			want: map[string]string{"a.yaml": "new", "b.yaml": "b"},
		},
		{
			name:  "another directory with the name of the place",
			files: map[string]string{"in/a.yaml": "old", "in2/a.yaml": "new"},
			place: Place{Root: "in"},
			change: func(t *testing.T, root string) {
				rename(t, root+"/in", root+"/old")
				rename(t, root+"/in2", root+"/in")
			},
			want: map[string]string{"in/a.yaml": "new"},
		},
		{
			name:   "an edit of a file outside the place, with a symlink in the place",
			files:  map[string]string{"in/a.yaml": "-> ../out/a", "out/a": "old"},
			place:  Place{Root: "in"},
			change: func(t *testing.T, root string) { writeFile(t, root+"/out/a", "new") },
			want:   map[string]string{"in/a.yaml": "new"},
		},
		{
			name:  "an edit through another name of the file, as of a file that is mounted alone",
			files: map[string]string{"in/a.yaml": "old"},
			place: Place{Root: "in"},
			change: func(t *testing.T, root string) {
				require.NoError(t, os.Link(root+"/in/a.yaml", root+"/out"))
				writeFile(t, root+"/out", "new")
			},
			want: map[string]string{"in/a.yaml": "new"},
		},
		{
			name: "the next version of a Kubernetes ConfigMap, with files in directories",
			files: map[string]string{
				"..1/sub/a.yaml": "old", "..data": "-> ..1", "sub": "-> ..data/sub",
			},
			change: func(t *testing.T, root string) {
				writeFile(t, root+"/..2/sub/a.yaml", "new")
				symlink(t, "..2", root+"/..data_tmp")
				rename(t, root+"/..data_tmp", root+"/..data")
				require.NoError(t, os.RemoveAll(root+"/..1"))
			},
			want: map[string]string{"sub/a.yaml": "new"},
		},
		{
			name:   "the first file of a place that did not exist",
			place:  Place{Root: "x/y", AppDirectory: "config"},
			change: func(t *testing.T, root string) { writeFile(t, root+"/x/y/config/a.yaml", "new") },
			want:   map[string]string{"x/y/config/a.yaml": "new"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				source := startSettledSource(t, newTree(t, test.files), test.place)
				test.change(t, source.root)
				changedAt := time.Now()
				assert.Equal(t, test.want, source.contents(source.nextSnapshot()))
				assert.LessOrEqual(t, time.Since(changedAt), 2*interval)
				source.requireNoSnapshot()
			})
		})
	}
}

// writeSlowly writes "new " n times into a file, with pauses shorter than the interval, and returns the content.
func writeSlowly(t *testing.T, path string, n int) string {
	f, err := os.Create(path)
	require.NoError(t, err)
	for range n {
		_, err = f.WriteString("new ")
		require.NoError(t, err)
		time.Sleep(interval * 9 / 10)
	}
	require.NoError(t, f.Close())
	return strings.Repeat("new ", n)
}

func TestFileIsAppliedWhenItsWriterHasFinished(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		source := startSettledSource(t, newTree(t, map[string]string{"a.yaml": "old"}), Place{})
		want := writeSlowly(t, source.root+"/a.yaml", 6)
		assert.Equal(t, map[string]string{"a.yaml": want}, source.contents(source.nextSnapshot()))
		source.requireNoSnapshot()
	})
}

func TestFileBeingWrittenAtTheStartIsReadAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		root := newTree(t, map[string]string{"a.yaml": ""})
		source := startSource(t, root, Place{})
		assert.Equal(t, map[string]string{"a.yaml": ""}, source.contents(source.nextSnapshot()))
		for i := range 10 {
			require.NoError(t, os.WriteFile(root+"/a.yaml", []byte(strings.Repeat("x", i)), 0o644))
			time.Sleep(stablePause * 9 / 10)
		}
		assert.Equal(t, map[string]string{"a.yaml": "xxxxxxxxx"}, source.contents(source.nextSnapshot()))
		source.requireNoSnapshot()
	})
}

func TestFilesThatKeepChangingCauseAnError(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		root := newTree(t, map[string]string{"a.yaml": "0"})
		writerCtx, stopWriter := context.WithCancel(context.Background())
		finalText := make(chan string)
		go func() {
			text := ""
			for ; writerCtx.Err() == nil; time.Sleep(stablePause / 2) {
				text += "x"
				assert.NoError(t, os.WriteFile(root+"/a.yaml", []byte(text), 0o644))
			}
			finalText <- text
		}()
		source := startSource(t, root, Place{})
		time.Sleep(maxStartChecks * stablePause)
		assert.NotEmpty(t, source.nextSnapshot().files, "the first snapshot comes even if the files are not settled")
		time.Sleep(maxChangedChecks * interval)
		assert.ErrorContains(t, source.nextSnapshot().err, root+": the files keep changing")
		source.requireNoSnapshot()
		stopWriter()
		assert.Equal(t, map[string]string{"a.yaml": <-finalText}, source.contents(source.nextSnapshot()))
		source.requireNoSnapshot()
	})
}

func TestFirstReadDoesNotWait(t *testing.T) {
	t.Parallel()
	for _, age := range []time.Duration{time.Hour, stablePause / 2, 0, -time.Hour} { // a file from the future has the time of another clock
		synctest.Test(t, func(t *testing.T) {
			root := newTree(t, map[string]string{"in/a.yaml": "a"})
			fileTime := time.Now().Add(-age)
			require.NoError(t, os.Chtimes(filepath.Join(root, "in/a.yaml"), fileTime, fileTime))
			start := time.Now()
			source := startSource(t, root, Place{Root: "in"})
			assert.Equal(t, map[string]string{"in/a.yaml": "a"}, source.contents(source.nextSnapshot()))
			assert.Zero(t, time.Since(start), "changed %s ago", age)
		})
	}
}

func TestUnchangedContentIsNotApplied(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		source := startSettledSource(t, newTree(t, map[string]string{"a.yaml": "a"}), Place{})
		writeFile(t, source.root+"/a.yaml", "a")
		writeFile(t, source.root+"/.a.yaml.swp", "not limits")
		writeFile(t, source.root+"/a.yaml~", "not limits")
		source.requireNoSnapshot()
		now := time.Now()
		require.NoError(t, os.Chtimes(source.root+"/a.yaml", now, now))
		source.requireNoSnapshot()
	})
}

func TestFullReadFindsChangeThatMetadataHides(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		source := startSettledSource(t, newTree(t, map[string]string{"a.yaml": "old"}), Place{})
		oldTime := modTime(t, source.root+"/a.yaml")
		require.NoError(t, os.WriteFile(source.root+"/a.yaml", []byte("new"), 0o644))
		require.NoError(t, os.Chtimes(source.root+"/a.yaml", oldTime, oldTime))
		time.Sleep(checksPerFullRead * interval)
		assert.Equal(t, map[string]string{"a.yaml": "new"}, source.contents(source.nextSnapshot()))
		time.Sleep(checksPerFullRead * interval)
		source.requireNoSnapshot()
	})
}

func TestErrorAndItsEndAreEachAppliedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		source := startSettledSource(t, newTree(t, map[string]string{"in/a.yaml": "a"}), Place{Root: "in"})
		rename(t, source.root+"/in", source.root+"/out")
		assert.ErrorIs(t, source.nextSnapshot().err, fs.ErrNotExist)
		writeFile(t, source.root+"/other", "x")
		source.requireNoSnapshot()
		rename(t, source.root+"/out", source.root+"/in")
		n := source.nextSnapshot()
		assert.NoError(t, n.err)
		assert.Equal(t, map[string]string{"in/a.yaml": "a"}, source.contents(n))
	})
}

func TestSkippedEntriesAreReported(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		source := startSettledSource(t, newTree(t, map[string]string{"a.yaml": "a"}), Place{})
		writeFile(t, source.root+"/b.yaml.txt", "b")
		n := source.nextSnapshot()
		assert.Equal(t, map[string]string{"a.yaml": "a"}, source.contents(n))
		require.Len(t, n.skippedEntries, 1)
		assert.Equal(t, source.root+"/b.yaml.txt", n.skippedEntries[0].Path)
		require.NoError(t, os.Remove(source.root+"/b.yaml.txt"))
		assert.Empty(t, source.nextSnapshot().skippedEntries)
		source.requireNoSnapshot()
	})
}

func TestReloadAppliesUnchangedFilesSoon(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		source := startSettledSource(t, newTree(t, map[string]string{"a.yaml": "a"}), Place{})
		start := time.Now()
		source.Reload()
		assert.Equal(t, map[string]string{"a.yaml": "a"}, source.contents(source.nextSnapshot()))
		assert.Equal(t, stablePause, time.Since(start))
		source.requireNoSnapshot()

		writeFile(t, source.root+"/a.yaml", "new")
		start = time.Now()
		source.Reload()
		assert.Equal(t, map[string]string{"a.yaml": "new"}, source.contents(source.nextSnapshot()))
		assert.Equal(t, stablePause, time.Since(start), "the read waits until the writer may have finished")
	})
}

func TestRunParsesFiles(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rule := func(key string) string {
			return "{domain: d, descriptors: [{key: " + key + ", rate_limit: {unit: second, requests_per_unit: 1}}]}"
		}
		root := newTree(t, map[string]string{"a.yaml": rule("a"), "a.md": ""})
		var log bytes.Buffer
		s := New(Options{
			Place: Place{Root: root}, Interval: interval, Parse: limitsfile.Options{MergeDomains: true},
			Log: slog.New(slog.NewTextHandler(&log, nil)),
		})
		ctx, cancel := context.WithCancel(context.Background())
		updates, done := make(chan source.Update), make(chan error)
		go func() {
			done <- s.Run(ctx, func(u source.Update) error { updates <- u; return u.Problem })
		}()
		update := <-updates
		require.NotNil(t, update.Limits)
		assert.Len(t, update.Limits.Domains[0].Descriptors, 1)
		assert.Equal(t, []slog.Attr{slog.Int("files", 1)}, update.Attrs)

		writeFile(t, root+"/b.yaml", "nonsense")
		update = <-updates
		assert.ErrorContains(t, update.Problem, root+"/b.yaml:1:1: ")
		assert.Nil(t, update.Limits)

		writeFile(t, root+"/b.yaml", rule("b"))
		update = <-updates
		assert.Len(t, update.Limits.Domains[0].Descriptors, 2)
		assert.Equal(t, []slog.Attr{slog.Int("files", 2)}, update.Attrs)

		require.NoError(t, os.RemoveAll(root))
		assert.ErrorIs(t, (<-updates).Problem, fs.ErrNotExist)
		assert.Equal(t, 1, strings.Count(log.String(), "file skipped"), log.String())
		cancel()
		assert.ErrorIs(t, <-done, context.Canceled)
	})
}

func TestUnchangedFilesAreReportedAsRead(t *testing.T) {
	for _, test := range []struct {
		name, text string
		want       bool
	}{
		{"valid files", "domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 5}}]", true},
		{"invalid files", "domain: [", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "limits.yaml")
				require.NoError(t, os.WriteFile(path, []byte(test.text), 0o600))
				ctx, cancel := context.WithCancel(t.Context())
				unchangedReads := 0
				var goroutine sync.WaitGroup
				goroutine.Go(func() {
					_ = New(Options{Place: Place{Root: path}, Interval: interval, Log: slog.New(slog.DiscardHandler)}).Run(ctx, func(u source.Update) error {
						if u.Limits == nil && u.Problem == nil {
							unchangedReads++
						}
						return u.Problem
					})
				})
				time.Sleep(2*checksPerFullRead*time.Second + time.Minute)
				cancel()
				goroutine.Wait()
				assert.Equal(t, test.want, unchangedReads >= 2, "%d reads", unchangedReads)
			})
		})
	}
}

func TestChangedListIsApplied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		root, listRoot := t.TempDir(), t.TempDir()
		list := filepath.Join(listRoot, "deny.txt")
		require.NoError(t, os.WriteFile(filepath.Join(root, "limits.yaml"), []byte("domain: d\ndescriptors: [{key: k, in: {file: "+list+"}}]"), 0o600))
		updates := make(chan source.Update, 100)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			done <- New(Options{Place: Place{Root: root}, Interval: interval, Log: slog.New(slog.DiscardHandler)}).Run(ctx, func(u source.Update) error {
				if u.Limits != nil || u.Problem != nil {
					updates <- u
				}
				return u.Problem
			})
		}()
		nextUpdate := func() source.Update {
			t.Helper()
			select {
			case update := <-updates:
				return update
			case <-time.After(5 * interval):
				require.FailNow(t, "no update arrives")
				return source.Update{}
			}
		}
		assert.ErrorContains(t, nextUpdate().Problem, list+": no such file or directory")
		for _, content := range []string{"a", "a\nb"} {
			require.NoError(t, os.WriteFile(list, []byte(content), 0o600))
			u := nextUpdate()
			require.NoError(t, u.Problem)
			want := append(strings.Fields(content), "~") // the last example is a value outside the list
			assert.Equal(t, want, u.Limits.Domains[0].Descriptors[0].Condition.Examples()[:len(want)])
		}
		time.Sleep(2 * checksPerFullRead * interval)
		assert.Empty(t, updates, "an unchanged list causes no update")
		cancel()
		assert.ErrorIs(t, <-done, context.Canceled)
	})
}
