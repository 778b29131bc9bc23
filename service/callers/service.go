package callers

import (
	"context"
	"crypto/x509"
	"log/slog"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// Service answers only calls with a domain that the caller may use.
type Service struct {
	rlsv3.UnimplementedRateLimitServiceServer
	nextService rlsv3.RateLimitServiceServer // answers the calls that are not refused
	file        *File
	onRefusal   func()
	log         *slog.Logger
	logRate     *rate.Limiter // bounds the log lines about refused calls to one per minute
}

// NewService returns a Service in front of nextService. The Service calls onRefusal for each refused call.
func NewService(nextService rlsv3.RateLimitServiceServer, file *File, onRefusal func(), log *slog.Logger) *Service {
	return &Service{nextService: nextService, file: file, onRefusal: onRefusal, log: log, logRate: rate.NewLimiter(rate.Every(time.Minute), 1)}
}

// ShouldRateLimit implements rlsv3.RateLimitServiceServer.
func (s *Service) ShouldRateLimit(ctx context.Context, req *rlsv3.RateLimitRequest) (*rlsv3.RateLimitResponse, error) {
	if err := s.CheckDomain(ctx, req.GetDomain()); err != nil {
		return nil, err
	}
	return s.nextService.ShouldRateLimit(ctx, req)
}

// CheckDomain returns nil if the caller of ctx may use domain. Otherwise it calls onRefusal and returns PERMISSION_DENIED.
func (s *Service) CheckDomain(ctx context.Context, domain string) error {
	var cert *x509.Certificate
	if p, ok := peer.FromContext(ctx); ok {
		cert = certificateOf(p)
	}
	if s.file.Bindings().Allows(cert, domain) {
		return nil
	}
	s.onRefusal()
	if s.logRate.Allow() {
		s.log.Warn("call refused; CALLER_DOMAINS_FILE does not bind the caller to the domain", "domain", domain, "caller", certificateNames(cert), "from", string(AppendCaller(nil, ctx, "")))
	}
	return status.Errorf(codes.PermissionDenied, "domain %q: the caller may not use this domain; got %s", domain, certificateNames(cert))
}

// certificateNames returns the names in c for messages: "certificate of uri=… dns=…".
func certificateNames(c *x509.Certificate) string {
	if c == nil {
		return "no client certificate"
	}
	text := "certificate of"
	for _, uri := range c.URIs {
		text += " uri=" + uri.String()
	}
	for _, name := range c.DNSNames {
		text += " dns=" + name
	}
	if c.Subject.CommonName != "" {
		text += " common_name=" + c.Subject.CommonName
	}
	return text
}
