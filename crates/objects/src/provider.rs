//! The kinds of object stores, with their environment variables and names.

/// A kind of object store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Provider {
    /// Amazon S3, and stores with the S3 protocol, such as MinIO and Ceph.
    S3,
    /// Google Cloud Storage.
    Google,
    /// Azure Blob Storage, whose buckets are called containers.
    Azure,
}

impl Provider {
    /// All kinds of object stores.
    pub const ALL: [Provider; 3] = [Provider::S3, Provider::Google, Provider::Azure];

    /// Returns the scheme of the store's URIs.
    pub fn scheme(self) -> &'static str {
        match self {
            Provider::S3 => "s3",
            Provider::Google => "gs",
            Provider::Azure => "az",
        }
    }

    /// Returns the store's word for a bucket.
    pub(crate) fn bucket(self) -> &'static str {
        match self {
            Provider::S3 | Provider::Google => "bucket",
            Provider::Azure => "container",
        }
    }

    /// Returns the common prefix of the store's variables.
    pub(crate) fn prefix(self) -> &'static str {
        match self {
            Provider::S3 => "AWS_",
            Provider::Google => "GOOGLE_",
            Provider::Azure => "AZURE_",
        }
    }

    /// Returns the variables for the URL of the server. The client uses the first variable that is set.
    pub(crate) fn endpoint_variables(self) -> &'static [&'static str] {
        match self {
            Provider::S3 => &["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"],
            Provider::Google => &["GOOGLE_BASE_URL"],
            Provider::Azure => &["AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"],
        }
    }

    /// Returns the other variables that contain URLs.
    pub(crate) fn url_variables(self) -> &'static [&'static str] {
        match self {
            Provider::S3 => &["AWS_ENDPOINT_URL_STS", "AWS_METADATA_ENDPOINT", "AWS_CONTAINER_CREDENTIALS_FULL_URI"],
            Provider::Google => &[],
            Provider::Azure => &[
                "AZURE_AUTHORITY_HOST",
                "AZURE_STORAGE_AUTHORITY_HOST",
                "AZURE_MSI_ENDPOINT",
                "AZURE_IDENTITY_ENDPOINT",
            ],
        }
    }

    /// Returns the variables that contain credentials, or configure how the client gets them.
    pub(crate) fn credential_variables(self) -> &'static [&'static str] {
        match self {
            Provider::S3 => &[
                "AWS_ACCESS_KEY_ID",
                "AWS_SECRET_ACCESS_KEY",
                "AWS_SESSION_TOKEN",
                "AWS_ROLE_ARN",
                "AWS_WEB_IDENTITY_TOKEN_FILE",
                "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
                "AWS_CONTAINER_CREDENTIALS_FULL_URI",
            ],
            Provider::Google => &[
                "GOOGLE_SERVICE_ACCOUNT",
                "GOOGLE_SERVICE_ACCOUNT_PATH",
                "GOOGLE_SERVICE_ACCOUNT_KEY",
                "GOOGLE_APPLICATION_CREDENTIALS",
                "GOOGLE_BEARER_TOKEN",
            ],
            Provider::Azure => &[
                "AZURE_STORAGE_ACCOUNT_KEY",
                "AZURE_STORAGE_ACCESS_KEY",
                "AZURE_STORAGE_SAS_KEY",
                "AZURE_STORAGE_SAS_TOKEN",
                "AZURE_STORAGE_TOKEN",
                "AZURE_CLIENT_ID",
                "AZURE_CLIENT_SECRET",
                "AZURE_TENANT_ID",
                "AZURE_FEDERATED_TOKEN_FILE",
            ],
        }
    }

    /// Returns the variable that makes the client send requests without credentials.
    pub(crate) fn skip_signature(self) -> String {
        format!("{}SKIP_SIGNATURE", self.prefix())
    }

    /// Describes how a user gives credentials to a job.
    pub(crate) fn credential_advice(self) -> &'static str {
        match self {
            Provider::S3 => {
                "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (profiles in ~/.aws are not read), or give the pod a role"
            }
            Provider::Google => {
                "set GOOGLE_APPLICATION_CREDENTIALS to the file of a service account's key, or give the pod one"
            }
            Provider::Azure => {
                "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or give the pod an identity"
            }
        }
    }

    /// Names the permissions that a reader needs.
    pub(crate) fn permissions(self) -> &'static str {
        match self {
            Provider::S3 => "s3:ListBucket and s3:GetObject",
            Provider::Google => "storage.objects.list and storage.objects.get",
            Provider::Azure => "the role Storage Blob Data Reader",
        }
    }
}
