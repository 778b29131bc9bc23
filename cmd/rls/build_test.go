package main

import (
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestBuildIsKnownInEachWayToBuild(t *testing.T) {
	const hash, commitTime = "39975c3e40b6d2d7f0d1c2a3b4c5d6e7f8091a2b", "2026-11-22T10:07:59Z"
	buildInfo := func(version string, settings ...debug.BuildSetting) *debug.BuildInfo {
		return &debug.BuildInfo{Main: debug.Module{Version: version}, Settings: settings}
	}
	vcs := []debug.BuildSetting{{Key: "vcs", Value: "git"}, {Key: "vcs.revision", Value: hash}, {Key: "vcs.time", Value: commitTime}}
	for _, test := range []struct {
		name       string
		fromLinker build
		info       *debug.BuildInfo
		want       build
	}{
		{"make, Docker and releases", build{"v1.2.3", hash, commitTime}, buildInfo("(devel)"), build{"v1.2.3", hash, commitTime}},
		{"the linker replaces what Go records", build{"v1.2.3", "abc", commitTime}, buildInfo("v1.2.2", vcs...), build{"v1.2.3", "abc", commitTime}},
		{"go build in a clone", build{}, buildInfo("v1.2.4-0.20261122100759-39975c3e40b6+dirty", vcs...), build{"v1.2.4-0.20261122100759-39975c3e40b6+dirty", hash, commitTime}},
		{"go install of a commit", build{}, buildInfo("v0.0.0-20261122100759-39975c3e40b6"), build{"v0.0.0-20261122100759-39975c3e40b6", "39975c3e40b6", commitTime}},
		{"go install of a tag", build{}, buildInfo("v1.2.3"), build{"v1.2.3", "unknown", "unknown"}},
		{"go build without git", build{}, buildInfo("(devel)"), build{"(devel)", "unknown", "unknown"}},
		{"no record", build{}, nil, build{"unknown", "unknown", "unknown"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			assert.Equal(t, test.want, newBuild(test.fromLinker, test.info))
		})
	}
}
