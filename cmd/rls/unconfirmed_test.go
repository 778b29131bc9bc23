package main

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/seed-81f232ab/rls/backend/redis"
)

func TestUnconfirmedBatchesMakeOneLineAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		u := &unconfirmedLog{replicas: 2, log: slog.New(slog.NewTextHandler(&out, nil))}
		for range 120 {
			u.add(redis.RoleMain)
			time.Sleep(time.Second)
		}
		u.add(redis.RolePerSecond)
		assert.Equal(t, 2, strings.Count(out.String(), "server=main"))
		assert.Contains(t, out.String(), "batches=1 replicas_wanted=2")
		assert.Contains(t, out.String(), "batches=60")
		assert.Equal(t, 1, strings.Count(out.String(), "server=per_second"))
	})
}
