package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const secret = "wJalrXUtnFEMI"

var (
	login = credentials.NewStaticCredentialsProvider("AKIDEXAMPLE", secret, "session")
	now   = time.Date(2026, 11, 23, 21, 0, 0, 0, time.UTC)
)

func sign(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(text))
	return h.Sum(nil)
}

// signature computes the signature of a token by the steps of Signature Version 4.
func signature(query url.Values, host, service, region string) string {
	query.Del("X-Amz-Signature")
	canonicalRequest := strings.Join([]string{
		"GET", "/", strings.ReplaceAll(query.Encode(), "+", "%20"), "host:" + host, "", "host", hex.EncodeToString(sha256.New().Sum(nil)),
	}, "\n")
	hash := sha256.Sum256([]byte(canonicalRequest))
	day := query.Get("X-Amz-Date")[:8]
	text := strings.Join([]string{
		"AWS4-HMAC-SHA256", query.Get("X-Amz-Date"), day + "/" + region + "/" + service + "/aws4_request", hex.EncodeToString(hash[:]),
	}, "\n")
	key := sign(sign(sign(sign([]byte("AWS4"+secret), day), region), service), "aws4_request")
	return hex.EncodeToString(sign(key, text))
}

func TestTokenIsASignedURLForTheCache(t *testing.T) {
	for name, invalidCache := range map[string]cache{
		"a cache of ElastiCache": {Service: "elasticache", Name: "Limits", User: "rls", Region: "eu-west-1"},
		"a serverless cache":     {Service: "elasticache", Name: "limits", User: "rls", Region: "eu-west-1", Serverless: true},
		"a cluster of MemoryDB":  {Service: "memorydb", Name: "limits", User: "rls", Region: "us-east-1"},
	} {
		t.Run(name, func(t *testing.T) {
			token, err := invalidCache.token(t.Context(), login, now)
			require.NoError(t, err)
			signedURL, err := url.Parse("http://" + token)
			require.NoError(t, err)
			assert.Equal(t, "limits", signedURL.Host, "in small letters")
			assert.Equal(t, "/", signedURL.Path)
			q := signedURL.Query()
			assert.Equal(t, "connect", q.Get("Action"))
			assert.Equal(t, "rls", q.Get("User"))
			assert.Equal(t, "900", q.Get("X-Amz-Expires"))
			assert.Equal(t, "20261123T210000Z", q.Get("X-Amz-Date"))
			assert.Equal(t, "session", q.Get("X-Amz-Security-Token"))
			assert.Equal(t, invalidCache.Serverless, q.Get("ResourceType") == "ServerlessCache")
			assert.Equal(t, q.Get("X-Amz-Signature"), signature(q, signedURL.Host, invalidCache.Service, invalidCache.Region))
		})
	}
}

func TestWrongFlagsAreNamed(t *testing.T) {
	validCache := cache{Service: "memorydb", Name: "limits", User: "rls", Region: "eu-west-1"}
	require.NoError(t, validCache.check("file", time.Minute))
	for want, change := range map[string]func(*cache){
		"-name":       func(c *cache) { c.Name = "" },
		"-service":    func(c *cache) { c.Service = "redis" },
		"-serverless": func(c *cache) { c.Serverless = true },
	} {
		c := validCache
		change(&c)
		assert.ErrorContains(t, c.check("file", time.Minute), want)
	}
	assert.ErrorContains(t, validCache.check("file", tokenLifetime), "-interval")
}

func TestFileKeepsLastTokenAfterAnError(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "auth")
	require.NoError(t, replaceFile(file, "rls:token"))
	assert.Error(t, replaceFile(filepath.Join(dir, "missing", "auth"), "rls:other"))
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, "rls:token\n", string(text))
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Len(t, files, 1, "no temporary file is left")
}
