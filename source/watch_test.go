package source

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	quiet = 50 * time.Millisecond
	soon  = 10 * time.Second // for what must happen
	never = time.Hour
)

// follow runs a Watcher; the channel has what it tells.
func follow(t *testing.T, r Runtime, o WatchOptions) (*Watcher, <-chan Reading) {
	t.Helper()
	if o.Quiet == 0 {
		o.Quiet = quiet
	}
	if o.Poll == 0 {
		o.Poll = never
	}
	w := NewWatcher(r, Options{}, o)
	w.First()
	told := make(chan Reading, 1000)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { w.Run(ctx, func(r Reading) { told <- r }) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return w, told
}

// next is the next Reading, which must come.
func next(t *testing.T, told <-chan Reading) Reading {
	t.Helper()
	select {
	case r := <-told:
		return r
	case <-time.After(soon):
		require.FailNow(t, "no change is seen")
		return Reading{}
	}
}

// nothing more is told for some quiet spans.
func nothing(t *testing.T, told <-chan Reading) {
	t.Helper()
	nothingFor(t, told, 5*quiet)
}

func nothingFor(t *testing.T, told <-chan Reading, d time.Duration) {
	t.Helper()
	select {
	case r := <-told:
		assert.Fail(t, "told once too often", "%v %v", r.Digests, r.Err)
	case <-time.After(d):
	}
}

// until reads on to the Reading that has the texts. A slow machine can make more
// than one of a burst, but not many.
func until(t *testing.T, told <-chan Reading, root string, want map[string]string) {
	t.Helper()
	for range 3 {
		if got := texts(t, root, next(t, told)); maps.Equal(got, want) {
			nothing(t, told)
			return
		}
	}
	assert.Fail(t, "not what was expected")
}

// texts are the files' names, below root, and contents.
func texts(t *testing.T, root string, r Reading) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, f := range r.Files {
		name, err := filepath.Rel(root, f.Name)
		require.NoError(t, err)
		all[name] = string(f.Data)
	}
	return all
}

func write(t *testing.T, path, text string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
}

func rename(t *testing.T, from, to string) {
	t.Helper()
	require.NoError(t, os.Rename(from, to))
}

func link(t *testing.T, target, path string) {
	t.Helper()
	require.NoError(t, os.Symlink(target, path))
}

// TestEveryWayOfChangeIsSeen changes a tree in one way and waits for the one
// Reading that tells it.
func TestEveryWayOfChangeIsSeen(t *testing.T) {
	configMap := map[string]string{
		"..1/a.yaml": "old", "..data": "-> ..1", "a.yaml": "-> ..data/a.yaml",
	}
	for _, test := range []struct {
		name   string
		files  map[string]string
		place  Runtime // below the root
		change func(t *testing.T, root string)
		want   map[string]string
	}{
		{
			name:   "an edit in place",
			files:  map[string]string{"a.yaml": "old", "b.yaml": "b"},
			change: func(t *testing.T, root string) { write(t, root+"/a.yaml", "new") },
			want:   map[string]string{"a.yaml": "new", "b.yaml": "b"},
		},
		{
			name:   "an edit of the one file that is named",
			files:  map[string]string{"a.conf": "old"},
			place:  Runtime{Root: "a.conf"},
			change: func(t *testing.T, root string) { write(t, root+"/a.conf", "new") },
			want:   map[string]string{"a.conf": "new"},
		},
		{
			name:  "an editor's rename over the file",
			files: map[string]string{"a.yaml": "old"},
			change: func(t *testing.T, root string) {
				write(t, root+"/.a.yaml.tmp~", "new")
				rename(t, root+"/.a.yaml.tmp~", root+"/a.yaml")
			},
			want: map[string]string{"a.yaml": "new"},
		},
		{
			name:  "a rename over the one file that is named",
			files: map[string]string{"a.yaml": "old"},
			place: Runtime{Root: "a.yaml"},
			change: func(t *testing.T, root string) {
				write(t, root+"/tmp", "new")
				rename(t, root+"/tmp", root+"/a.yaml")
			},
			want: map[string]string{"a.yaml": "new"},
		},
		{
			name:   "a file added",
			files:  map[string]string{"a.yaml": "a"},
			change: func(t *testing.T, root string) { write(t, root+"/b.yaml", "b") },
			want:   map[string]string{"a.yaml": "a", "b.yaml": "b"},
		},
		{
			name:   "a file removed",
			files:  map[string]string{"a.yaml": "a", "b.yaml": "b"},
			change: func(t *testing.T, root string) { require.NoError(t, os.Remove(root+"/b.yaml")) },
			want:   map[string]string{"a.yaml": "a"},
		},
		{
			name:   "a file moved out",
			files:  map[string]string{"in/a.yaml": "a", "in/b.yaml": "b"},
			place:  Runtime{Root: "in"},
			change: func(t *testing.T, root string) { rename(t, root+"/in/b.yaml", root+"/b.yaml") },
			want:   map[string]string{"in/a.yaml": "a"},
		},
		{
			name:   "an edit deep below",
			files:  map[string]string{"a.yaml": "a", "x/y/b.yaml": "old"},
			change: func(t *testing.T, root string) { write(t, root+"/x/y/b.yaml", "new") },
			want:   map[string]string{"a.yaml": "a", "x/y/b.yaml": "new"},
		},
		{
			name:   "a new sub-directory with files",
			files:  map[string]string{"a.yaml": "a"},
			change: func(t *testing.T, root string) { write(t, root+"/x/y/b.yaml", "b") },
			want:   map[string]string{"a.yaml": "a", "x/y/b.yaml": "b"},
		},
		{
			name:  "another target of the root's link",
			files: map[string]string{"v1/config/a.yaml": "old", "v2/config/a.yaml": "new", "current": "-> v1"},
			place: Runtime{Root: "current", AppDirectory: "config", WatchRoot: true},
			change: func(t *testing.T, root string) {
				link(t, "v2", root+"/next")
				rename(t, root+"/next", root+"/current")
			},
			want: map[string]string{"current/config/a.yaml": "new"},
		},
		{
			name:   "an edit behind the root's link",
			files:  map[string]string{"v1/config/a.yaml": "old", "current": "-> v1"},
			place:  Runtime{Root: "current", AppDirectory: "config", WatchRoot: true},
			change: func(t *testing.T, root string) { write(t, root+"/v1/config/a.yaml", "new") },
			want:   map[string]string{"current/config/a.yaml": "new"},
		},
		{
			name:   "a file beside the app directory",
			files:  map[string]string{"r/config/a.yaml": "a"},
			place:  Runtime{Root: "r", AppDirectory: "config", WatchRoot: true},
			change: func(t *testing.T, root string) { write(t, root+"/r/config.yaml", "new") },
			want:   map[string]string{"r/config/a.yaml": "a", "r/config.yaml": "new"},
		},
		{
			name:  "a link further up with another target",
			files: map[string]string{"v1/r/config/a.yaml": "old", "v2/r/config/a.yaml": "new", "l1": "-> l2", "l2": "-> v1"},
			place: Runtime{Root: "l1/r", AppDirectory: "config"},
			change: func(t *testing.T, root string) {
				link(t, "v2", root+"/next")
				rename(t, root+"/next", root+"/l2")
			},
			want: map[string]string{"l1/r/config/a.yaml": "new"},
		},
		{
			name:  "a Kubernetes ConfigMap's next version",
			files: configMap,
			change: func(t *testing.T, root string) {
				write(t, root+"/..2/a.yaml", "new")
				link(t, "..2", root+"/..data_tmp")
				rename(t, root+"/..data_tmp", root+"/..data")
				require.NoError(t, os.RemoveAll(root+"/..1"))
			},
			want: map[string]string{"a.yaml": "new"},
		},
		{
			name:  "a Kubernetes ConfigMap's next version with one more key",
			files: configMap,
			change: func(t *testing.T, root string) {
				write(t, root+"/..2/a.yaml", "new")
				write(t, root+"/..2/b.yaml", "b")
				link(t, "..2", root+"/..data_tmp")
				rename(t, root+"/..data_tmp", root+"/..data")
				link(t, "..data/b.yaml", root+"/b.yaml")
				require.NoError(t, os.RemoveAll(root+"/..1"))
			},
			want: map[string]string{"a.yaml": "new", "b.yaml": "b"},
		},
		{
			name:  "another directory of the same name",
			files: map[string]string{"in/a.yaml": "old", "in2/a.yaml": "new"},
			place: Runtime{Root: "in"},
			change: func(t *testing.T, root string) {
				rename(t, root+"/in", root+"/old")
				rename(t, root+"/in2", root+"/in")
			},
			want: map[string]string{"in/a.yaml": "new"},
		},
		{
			name:   "a file behind a link to elsewhere",
			files:  map[string]string{"in/a.yaml": "-> ../out/a", "out/a": "old"},
			place:  Runtime{Root: "in"},
			change: func(t *testing.T, root string) { write(t, root+"/out/a", "new") },
			want:   map[string]string{"in/a.yaml": "new"},
		},
		{
			name:  "an edit through another name of the file, as of one that is mounted on its own",
			files: map[string]string{"in/a.yaml": "old"},
			place: Runtime{Root: "in"},
			change: func(t *testing.T, root string) {
				require.NoError(t, os.Link(root+"/in/a.yaml", root+"/out"))
				write(t, root+"/out", "new")
			},
			want: map[string]string{"in/a.yaml": "new"},
		},
		{
			name: "a Kubernetes ConfigMap's next version with files below directories",
			files: map[string]string{
				"..1/sub/a.yaml": "old", "..data": "-> ..1", "sub": "-> ..data/sub",
			},
			change: func(t *testing.T, root string) {
				write(t, root+"/..2/sub/a.yaml", "new")
				link(t, "..2", root+"/..data_tmp")
				rename(t, root+"/..data_tmp", root+"/..data")
				require.NoError(t, os.RemoveAll(root+"/..1"))
			},
			want: map[string]string{"sub/a.yaml": "new"},
		},
		{
			name:   "the first file in a place that wasn't there",
			place:  Runtime{Root: "x/y", AppDirectory: "config"},
			change: func(t *testing.T, root string) { write(t, root+"/x/y/config/a.yaml", "new") },
			want:   map[string]string{"x/y/config/a.yaml": "new"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			root := tree(t, test.files)
			place := test.place
			place.Root = filepath.Join(root, place.Root)
			_, told := follow(t, place, WatchOptions{})
			time.Sleep(2 * quiet) // until it listens; a change before that is seen as well
			test.change(t, root)
			until(t, told, root, test.want)
		})
	}
}

func TestAChangeBeforeRunIsSeen(t *testing.T) {
	root := tree(t, map[string]string{"a.yaml": "old"})
	w := NewWatcher(Runtime{Root: root}, Options{}, WatchOptions{Quiet: quiet, Poll: never})
	assert.Equal(t, map[string]string{"a.yaml": "old"}, texts(t, root, w.First()))
	write(t, root+"/a.yaml", "new")
	ctx, cancel := context.WithCancel(t.Context())
	w.Run(ctx, func(r Reading) {
		assert.Equal(t, map[string]string{"a.yaml": "new"}, texts(t, root, r))
		cancel()
	})
}

// slow is a Quiet that no pause of a machine with much to do reaches.
const slow = time.Second

func TestABurstIsToldOnce(t *testing.T) {
	t.Parallel()
	root := tree(t, map[string]string{"a.yaml": "0"})
	_, told := follow(t, Runtime{Root: root}, WatchOptions{Quiet: slow})
	for i := range 30 {
		write(t, root+"/a.yaml", fmt.Sprint(i+1))
		time.Sleep(time.Millisecond)
	}
	assert.Equal(t, map[string]string{"a.yaml": "30"}, texts(t, root, next(t, told)))
	nothingFor(t, told, 2*slow)
}

func TestAFileBeingWrittenIsNotTold(t *testing.T) {
	t.Parallel()
	root := tree(t, map[string]string{"a.yaml": "old"})
	_, told := follow(t, Runtime{Root: root}, WatchOptions{Quiet: slow})
	writeSlowly(t, root+"/a.yaml", "new ", 60)
	assert.Equal(t, map[string]string{"a.yaml": strings.Repeat("new ", 60)}, texts(t, root, next(t, told)))
	nothingFor(t, told, 2*slow)
}

// writeSlowly writes text n times into a file, which takes longer than slow.
func writeSlowly(t *testing.T, path, text string, n int) {
	f, err := os.Create(path)
	require.NoError(t, err)
	for range n {
		_, err = f.WriteString(text)
		require.NoError(t, err)
		time.Sleep(3 * slow / 2 / time.Duration(n))
	}
	require.NoError(t, f.Close())
}

func TestFirstWaitsForAFileBeingWritten(t *testing.T) {
	t.Parallel()
	root := tree(t, map[string]string{"a.yaml": "new "})
	var writing sync.WaitGroup
	defer writing.Wait()
	began := make(chan struct{})
	writing.Go(func() {
		close(began)
		writeSlowly(t, root+"/a.yaml", "new ", 60)
	})
	<-began
	w := NewWatcher(Runtime{Root: root}, Options{}, WatchOptions{Quiet: slow, Poll: never})
	assert.Equal(t, map[string]string{"a.yaml": strings.Repeat("new ", 60)}, texts(t, root, w.First()))
}

func TestAPlaceWithoutRestIsReadAtFirstAndThenToldOf(t *testing.T) {
	t.Parallel()
	root := tree(t, map[string]string{"a.yaml": "0"})
	ctx, stop := context.WithCancel(context.Background())
	var writing sync.WaitGroup
	writing.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			write(t, root+"/.tmp", fmt.Sprint(i))
			rename(t, root+"/.tmp", root+"/a.yaml")
			time.Sleep(time.Millisecond)
		}
	})
	restless := make(chan time.Duration, 1000)
	_, told := follow(t, Runtime{Root: root}, WatchOptions{
		Quiet: 2 * quiet, OnRestless: func(since time.Duration) { restless <- since },
	})
	select {
	case since := <-restless:
		assert.Greater(t, since, 50*quiet)
	case <-time.After(10 * soon):
		assert.Fail(t, "nobody is told that there is no rest")
	}
	stop()
	writing.Wait()
	last, err := os.ReadFile(root + "/a.yaml")
	require.NoError(t, err)
	for texts(t, root, next(t, told))["a.yaml"] != string(last) {
	}
}

func TestWhatDoesNotChangeTheTextIsNotTold(t *testing.T) {
	root := tree(t, map[string]string{"a.yaml": "a"})
	_, told := follow(t, Runtime{Root: root}, WatchOptions{})
	write(t, root+"/a.yaml", "a")
	write(t, root+"/.a.yaml.swp", "not limits")
	write(t, root+"/a.yaml~", "not limits")
	require.NoError(t, os.Chtimes(root+"/a.yaml", time.Now(), time.Now()))
	nothing(t, told)
}

func TestErrorsAreToldOnceAndTheirEndIs(t *testing.T) {
	root := tree(t, map[string]string{"in/a.yaml": "a"})
	_, told := follow(t, Runtime{Root: root + "/in"}, WatchOptions{})
	rename(t, root+"/in", root+"/out")
	assert.ErrorIs(t, next(t, told).Err, fs.ErrNotExist)
	write(t, root+"/other", "x")
	nothing(t, told)
	rename(t, root+"/out", root+"/in")
	r := next(t, told)
	assert.NoError(t, r.Err)
	assert.Equal(t, map[string]string{"in/a.yaml": "a"}, texts(t, root, r))
}

func TestWhatIsLeftOutIsTold(t *testing.T) {
	root := tree(t, map[string]string{"a.yaml": "a"})
	_, told := follow(t, Runtime{Root: root}, WatchOptions{})
	write(t, root+"/b.yaml.txt", "b")
	r := next(t, told)
	assert.Equal(t, map[string]string{"a.yaml": "a"}, texts(t, root, r))
	require.Len(t, r.Skipped, 1)
	assert.Equal(t, root+"/b.yaml.txt", r.Skipped[0].Path)
	require.NoError(t, os.Remove(root+"/b.yaml.txt"))
	assert.Empty(t, next(t, told).Skipped)
	nothing(t, told)
}

// The reading itself tells of directories that are gone or closed; what else keeps one
// from being watched is told, once.
func TestOnlyWhatNoReadingTellsMakesItBlind(t *testing.T) {
	here, long := t.TempDir(), "/"+strings.Repeat("x", 300) // longer than a name can be
	for name, c := range map[string]struct {
		spots spots
		told  int
	}{
		"all can be watched":         {spots{here: nil}, 0},
		"one has gone":               {spots{here: nil, here + "/gone": nil}, 0},
		"one can't be watched":       {spots{here: nil, here + long: nil, here + long + "/more": nil}, 1},
		"one on the way can't be so": {spots{here: nil, here + long: {"a": true}}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			told := 0
			w := NewWatcher(Runtime{Root: here}, Options{}, WatchOptions{OnBlind: func(error) { told++ }})
			w.listen(c.spots)
			w.close()
			assert.Equal(t, c.told, told)
		})
	}
}

func TestDigestsNameWhatHasChanged(t *testing.T) {
	before := Digests{"same": {1}, "edited": {1}, "gone": {1}}
	assert.Equal(t, []string{"edited", "gone", "new"}, Digests{"same": {1}, "edited": {2}, "new": {1}}.Changed(before))
	assert.Equal(t, []string{"edited", "gone", "same"}, Digests(nil).Changed(before))
	assert.Empty(t, before.Changed(before))
}

func TestWithoutEventsPollingSeesChanges(t *testing.T) {
	root := tree(t, map[string]string{"a.yaml": "old"})
	_, told := follow(t, Runtime{Root: root}, WatchOptions{NoEvents: true, Poll: quiet})
	write(t, root+"/a.yaml", "new")
	assert.Equal(t, map[string]string{"a.yaml": "new"}, texts(t, root, next(t, told)))
	nothing(t, told)
}

func TestReloadTellsWhatHasNotChanged(t *testing.T) {
	root := tree(t, map[string]string{"a.yaml": "a"})
	w, told := follow(t, Runtime{Root: root}, WatchOptions{})
	w.Reload()
	r := next(t, told)
	assert.Equal(t, map[string]string{"a.yaml": "a"}, texts(t, root, r))
	assert.True(t, r.Asked)
	nothing(t, told)
}
