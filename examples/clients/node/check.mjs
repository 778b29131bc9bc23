// Asks rls once whether a request may pass, as a web service does before its work.
//
// Usage: node check.mjs URL DOMAIN KEY=VALUE[,KEY=VALUE...] [SECONDS]

// check returns whether the request may pass, and the seconds to wait if not (undefined: it can never pass). entries
// is a list of pairs, such as [['user', 'Smith, Anna']]. Values may have any characters.
export async function check(url, domain, entries, seconds = 0.1) {
  const descriptor = entries.map(([key, value]) => ({ key, value }));
  try {
    const response = await fetch(`${url}/v1/check`, {
      method: 'POST',
      body: JSON.stringify({ domain, checks: [{ descriptor }] }),
      signal: AbortSignal.timeout(1000 * seconds),
    });
    if (!response.ok) throw new Error(`status ${response.status}`);
    const { answers: [answer] } = await response.json();
    if (answer.code === 'ERROR') throw new Error(answer.error.message);
    return { passes: answer.code !== 'OVER_LIMIT', wait: answer.never ? undefined : answer.reset_seconds };
  } catch (error) {
    console.error(`rls does not decide, so the request passes: ${error.message}`);
    return { passes: true, wait: 0 };
  }
}

// A middleware of Express. user is the identity that your own login has checked.
export const limitUsers = (url, domain) => async (request, response, next) => {
  const { passes, wait } = await check(url, domain, [['user', request.user]]);
  if (passes) return next();
  if (wait !== undefined) response.set('Retry-After', String(Math.ceil(wait))); // whole seconds; 0 would repeat at once
  response.status(429).json({ error: 'too many requests' });
};

if (process.argv[1]?.endsWith('check.mjs')) {
  const [url, domain, text, seconds] = process.argv.slice(2);
  const entries = text.split(',').map((part) => part.split(/=(.*)/s, 2)); // this command can't send values with a comma
  const { passes, wait } = await check(url, domain, entries, seconds);
  console.log(passes ? '200' : wait === undefined ? '429' : `429 Retry-After: ${Math.ceil(wait)}`);
}
