package client

import (
	"net/http"
	"strconv"
	"time"
)

// Middleware returns a middleware for net/http. It sends the Request that request returns for
// each call. If request returns nil, the call has no limit.
//
// A denied call is answered with 429 and Retry-After. Answers under a limit have the headers
// RateLimit-Limit, RateLimit-Remaining and RateLimit-Reset, which count permits and whole
// seconds. If there is no decision, the call is answered with 503.
func (c *Client) Middleware(request func(*http.Request) *Request) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			limited := request(req)
			if limited == nil {
				next.ServeHTTP(w, req)
				return
			}
			d, err := c.Check(req.Context(), *limited)
			if err != nil {
				c.log.Warn("request not decided", "error", err)
				http.Error(w, http.StatusText(http.StatusServiceUnavailable), http.StatusServiceUnavailable)
				return
			}
			if d.Limited {
				w.Header().Set("RateLimit-Limit", strconv.FormatUint(uint64(d.Limit), 10))
				w.Header().Set("RateLimit-Remaining", strconv.FormatUint(uint64(d.Remaining), 10))
				w.Header().Set("RateLimit-Reset", wholeSeconds(d.Reset))
			}
			if !d.Allowed {
				if !d.Never {
					w.Header().Set("Retry-After", wholeSeconds(max(d.Reset, time.Second)))
				}
				http.Error(w, http.StatusText(http.StatusTooManyRequests), http.StatusTooManyRequests)
				return
			}
			next.ServeHTTP(w, req)
		})
	}
}

func wholeSeconds(d time.Duration) string {
	return strconv.FormatInt(int64((d+time.Second-1)/time.Second), 10)
}
