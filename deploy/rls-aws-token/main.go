// Command rls-aws-token keeps an IAM token of ElastiCache or MemoryDB in a file. rls reads the file as
// REDIS_AUTH_FILE. Run it beside rls, with the file in a shared folder.
//
// It is a module of its own, so that rls does not carry the AWS SDK.
package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/config"
)

const (
	tokenLifetime = 15 * time.Minute // the longest that AWS accepts
	retryAfter    = 10 * time.Second
)

// cache is a cache of ElastiCache or a cluster of MemoryDB.
type cache struct {
	Service    string // elasticache or memorydb
	Name       string
	User       string
	Region     string
	Serverless bool
}

func main() {
	var c cache
	flag.StringVar(&c.Service, "service", "elasticache", "`elasticache` or memorydb")
	flag.StringVar(&c.Name, "name", "", "name of the cache, the replication group or the cluster")
	flag.StringVar(&c.User, "user", "", "user with IAM authentication")
	flag.StringVar(&c.Region, "region", os.Getenv("AWS_REGION"), "region of the cache; the default is AWS_REGION")
	flag.BoolVar(&c.Serverless, "serverless", false, "the cache is an ElastiCache Serverless cache")
	file := flag.String("file", "", "file for user:token, the REDIS_AUTH_FILE of rls")
	interval := flag.Duration("interval", 5*time.Minute, "time between two tokens, below 15m")
	flag.Parse()
	if err := c.check(*file, *interval); err != nil {
		fmt.Fprintln(os.Stderr, "rls-aws-token:", err)
		os.Exit(2)
	}
	ctx, _ := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	aws, err := config.LoadDefaultConfig(ctx, config.WithRegion(c.Region))
	if err != nil {
		fmt.Fprintln(os.Stderr, "rls-aws-token:", err)
		os.Exit(1)
	}
	c.keepToken(ctx, aws.Credentials, *file, *interval)
}

func (c cache) check(file string, interval time.Duration) error {
	switch {
	case c.Name == "" || c.User == "" || c.Region == "" || file == "":
		return errors.New("-name, -user, -region and -file are needed")
	case c.Service != "elasticache" && c.Service != "memorydb":
		return fmt.Errorf("-service: got %q, want elasticache or memorydb", c.Service)
	case c.Serverless && c.Service != "elasticache":
		return errors.New("-serverless is for elasticache only")
	case interval <= 0 || interval >= tokenLifetime:
		return fmt.Errorf("-interval: got %v, want more than 0 and less than %v", interval, tokenLifetime)
	}
	return nil
}

// keepToken writes a new token into file every interval, until ctx ends. After an error, the file keeps the last
// token.
func (c cache) keepToken(ctx context.Context, credentials aws.CredentialsProvider, file string, interval time.Duration) {
	for {
		next := interval
		token, err := c.token(ctx, credentials, time.Now())
		if err == nil {
			err = replaceFile(file, c.User+":"+token)
		}
		if err != nil && ctx.Err() == nil {
			slog.Error("no new token; the file keeps the last one", "problem", err, "retry_in", retryAfter)
			next = min(next, retryAfter)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(next):
		}
	}
}

// token returns a token that is valid for tokenLifetime. It is a signed URL without the scheme, as AWS wants it in
// place of a password.
func (c cache) token(ctx context.Context, credentials aws.CredentialsProvider, now time.Time) (string, error) {
	login, err := credentials.Retrieve(ctx)
	if err != nil {
		return "", err
	}
	query := url.Values{
		"Action": {"connect"}, "User": {c.User},
		"X-Amz-Expires": {fmt.Sprint(int(tokenLifetime.Seconds()))},
	}
	if c.Serverless {
		query.Set("ResourceType", "ServerlessCache")
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+strings.ToLower(c.Name)+"/?"+query.Encode(), nil)
	if err != nil {
		return "", err
	}
	emptyBody := sha256.Sum256(nil)
	signed, _, err := v4.NewSigner().PresignHTTP(ctx, login, request, hex.EncodeToString(emptyBody[:]), c.Service, c.Region, now)
	return strings.TrimPrefix(signed, "http://"), err
}

// replaceFile writes a file that no reader sees in part.
func replaceFile(path, text string) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".token-*")
	if err != nil {
		return err
	}
	_, err = f.WriteString(text + "\n")
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}
