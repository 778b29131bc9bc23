package server

import (
	"bytes"
	"log/slog"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

func TestHealthyOnlyIfNoComponentHasFault(t *testing.T) {
	t.Parallel()
	type state struct {
		component string
		ok        bool
		detail    string
	}
	for _, tt := range []struct {
		name   string
		states []state  // the states that the components report
		want   []string // the faults
	}{
		{"no component", nil, nil},
		{"all components ok", []state{{"redis", true, ""}, {"limits", true, ""}}, nil},
		{"one component with a fault", []state{{"redis", false, "refused"}, {"limits", true, ""}}, []string{"redis: refused"}},
		{
			"two components with faults",
			[]state{{"redis", false, "refused"}, {"limits", false, "none loaded"}},
			[]string{"limits: none loaded", "redis: refused"},
		},
		{
			"one of two faults ends",
			[]state{{"redis", false, "refused"}, {"limits", false, "none loaded"}, {"redis", true, ""}},
			[]string{"limits: none loaded"},
		},
		{"the only fault ends", []state{{"redis", false, "refused"}, {"redis", true, "ignored"}}, nil},
		{"the detail of a fault changes", []state{{"redis", false, "refused"}, {"redis", false, "timeout"}}, []string{"redis: timeout"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := NewHealth()
			for _, s := range tt.states {
				h.Set(s.component, s.ok, s.detail)
			}
			faults, _ := h.Lines()
			assert.ElementsMatch(t, tt.want, faults)
		})
	}
}

func TestProbesFollowHealth(t *testing.T) {
	t.Parallel()
	health := NewHealth()
	health.Set("limits", false, "not loaded yet")
	server := start(t, Options{Health: health})
	client := healthpb.NewHealthClient(dial(t, server.GRPCAddr().String()))

	requireAnswers := func(want healthpb.HealthCheckResponse_ServingStatus, wantHTTP int, wantBody string) {
		t.Helper()
		for _, name := range []string{"", "ratelimit"} {
			resp, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{Service: name})
			require.NoError(t, err)
			assert.Equal(t, want, resp.GetStatus(), "service %q", name)
		}
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			code, _, body := request(t, method, server.HTTPAddr(), "/healthcheck", "")
			assert.Equal(t, wantHTTP, code)
			assert.Equal(t, wantBody, body)
		}
	}
	requireAnswers(healthpb.HealthCheckResponse_NOT_SERVING, 500, "limits: not loaded yet\n")
	health.Set("limits", true, "")
	requireAnswers(healthpb.HealthCheckResponse_SERVING, 200, "OK")
	health.Note("redis", "down for a minute")
	requireAnswers(healthpb.HealthCheckResponse_SERVING, 200, "OK\nredis: down for a minute")
	health.Set("limits", false, "gone")
	requireAnswers(healthpb.HealthCheckResponse_NOT_SERVING, 500, "limits: gone\nredis: down for a minute\n")
	health.Set("limits", true, "")
	health.Note("redis", "")
	requireAnswers(healthpb.HealthCheckResponse_SERVING, 200, "OK")
	health.Set("redis", false, "refused")
	requireAnswers(healthpb.HealthCheckResponse_NOT_SERVING, 500, "redis: refused\n")

	_, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{Service: "other"})
	assert.Equal(t, codes.NotFound, status.Code(err))
}

func TestChangesOfReadinessAreLoggedOnce(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	health := NewHealth()
	health.Set("config", false, "no limits loaded")
	health.logTo(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}})))
	health.Set("redis", false, "refused")
	health.Set("config", true, "")
	health.Set("redis", true, "")
	health.Set("redis", true, "")
	assert.Equal(t, `level=WARN msg="readiness changed" ready=false reason="config: no limits loaded"
level=INFO msg="readiness changed" ready=true
`, log.String())
}

func TestHealthWatchSeesEveryChange(t *testing.T) {
	t.Parallel()
	health := NewHealth()
	server := start(t, Options{Health: health})
	watch, err := healthpb.NewHealthClient(dial(t, server.GRPCAddr().String())).
		Watch(t.Context(), &healthpb.HealthCheckRequest{Service: "ratelimit"})
	require.NoError(t, err)

	for _, ok := range []bool{true, false, true} {
		health.Set("redis", ok, "refused")
		want := healthpb.HealthCheckResponse_SERVING
		if !ok {
			want = healthpb.HealthCheckResponse_NOT_SERVING
		}
		resp, err := watch.Recv()
		require.NoError(t, err)
		assert.Equal(t, want, resp.GetStatus())
	}
}
